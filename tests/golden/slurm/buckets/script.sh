#!/bin/sh
#SBATCH --job-name=training-0a1b2c3d4-1
#SBATCH --chdir=/shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-1
#SBATCH --output=/shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-1/batch.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=5
#SBATCH --mem=7630M
#SBATCH --propagate=NONE
#SBATCH --export=ALL
#SBATCH --comment=digits
unset LC_ALL
exec /usr/bin/python3 -I -S /shared/alice/ffdl/controller/controller-0123456789abcdef.pyz head --launch /shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-1/launch.json
