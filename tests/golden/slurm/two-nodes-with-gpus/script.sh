#!/bin/sh
#SBATCH --job-name=training-0a1b2c3d4-3
#SBATCH --chdir=/shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-3
#SBATCH --output=/shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-3/batch.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=65536M
#SBATCH --gres=gpu:a100:4
#SBATCH --propagate=NONE
#SBATCH --export=ALL
#SBATCH --time=1-00:00:00
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --qos=normal
#SBATCH --signal=URG@600
#SBATCH --comment=digits
unset LC_ALL
exec /usr/bin/python3 -I -S /shared/alice/ffdl/controller/controller-0123456789abcdef.pyz head --launch /shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-3/launch.json
