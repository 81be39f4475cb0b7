#!/usr/bin/env bash
# A run over the GPUs of two nodes, a process for each of them: sbatch benchmarks/hosts/slurm.sh
# On nodes without GPUs: leave --gpus-per-node out, and take one task per node.
#SBATCH --job-name=fedjax-admm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
# Two minutes before the end all processes stop after their round, with a checkpoint; the same job again goes on.
#SBATCH --signal=TERM@120
set -euo pipefail

# runs/ must be on a file system that all nodes see. A script of your own: fa.initialize_distributed(), no arguments.
srun fedjax-admm --distributed auto run cifar10 --algorithm fedadmm-insa --penalty 1 --out runs/cifar10
