#!/bin/sh
#SBATCH --array=0,2%1
#SBATCH --job-name=array-0a1b2c3d4-7
#SBATCH --chdir=/shared/alice/ffdl/arrays/array-0a1b2c3d4/chunk-7
#SBATCH --output=/home/alice/out/digits-%A_%3a.txt
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
FFDL_NATIVE_ID=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
export FFDL_NATIVE_ID
exec /usr/bin/python3 -I -S /shared/alice/ffdl/controller/controller-0123456789abcdef.pyz head --tasks /shared/alice/ffdl/arrays/array-0a1b2c3d4/chunk-7/tasks --task "$SLURM_ARRAY_TASK_ID"
