#!/bin/sh
#SBATCH --job-name=training-000000001-1
#SBATCH --chdir=/shared/alice/ffdl/jobs/training-000000001/attempt-1
#SBATCH --output=/home/alice/out/digits-%A_002.txt
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
FFDL_NATIVE_ID=$SLURM_JOB_ID
export FFDL_NATIVE_ID
exec /usr/bin/python3 -I -S /shared/alice/ffdl/controller/controller-0123456789abcdef.pyz head --launch /shared/alice/ffdl/jobs/training-000000001/attempt-1/launch.json
