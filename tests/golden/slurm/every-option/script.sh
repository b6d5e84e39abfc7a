#!/bin/sh
#SBATCH --job-name=training-0a1b2c3d4-1
#SBATCH --chdir=/shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-1
#SBATCH --output="/home/alice/out dir/digits-%j.txt"
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=954M
#SBATCH --gres=gpu:1,nvme:1
#SBATCH --propagate=NONE
#SBATCH --export=ALL
#SBATCH --time=00:01:30
#SBATCH --partition=gpu
#SBATCH --account=a
#SBATCH --qos=q
#SBATCH --constraint="a100&ib"
#SBATCH --reservation=r
#SBATCH --nodelist="gpu[01-02]"
#SBATCH --exclude=gpu03
#SBATCH --dependency=afterok:4711
#SBATCH --begin=uts1800444840
#SBATCH --priority=TOP
#SBATCH --signal=USR1@120
#SBATCH --mail-user=alice@example.org
#SBATCH --mail-type=END,FAIL
#SBATCH --comment="it's \"quoted\" $(touch x) `y` %j #z \\ he\tjob"
#SBATCH --hold
#SBATCH --requeue
#SBATCH --exclusive
#SBATCH --switches=1@10:00
unset LC_ALL
exec /usr/bin/python3 -I -S /shared/alice/ffdl/controller/controller-0123456789abcdef.pyz head --launch /shared/alice/ffdl/jobs/training-0a1b2c3d4/attempt-1/launch.json
