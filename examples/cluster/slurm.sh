#!/bin/bash
# Train from parts that `difformer shard` made, on four machines with eight processes each.
#   difformer shard /shared/parts --nodes 'users-*.parquet' --label y --id user \
#       --edges 'follows-*.parquet' --parts 32 --partition streaming --memory 32GB
#   sbatch slurm.sh
# The parts and the run are on a disk that all machines can access. A process reads only its own parts.
#SBATCH --job-name=difformer
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=12:00:00
#SBATCH --requeue

set -euo pipefail
export OMP_NUM_THREADS=2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# A job that was requeued continues from its last checkpoint.
resume=()
[[ -f /shared/run/config.toml ]] && resume=(--resume)

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
    -m difformer train /shared/parts --out /shared/run --batch-size 1000000 "${resume[@]}"

# With Ray instead of torchrun: run `ray start --head` on the first machine and `ray start --address`
# on the others, each through srun and --block, then on the first
#   difformer train /shared/parts --out /shared/run --engine ray --workers 32 --address "$head:6379"
# Ray restarts lost workers itself. A requeued job adds --resume as above.
