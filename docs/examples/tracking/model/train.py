"""A training that logs to MLflow and Weights & Biases as usual; variables of the manifest make them write files."""

import mlflow
import wandb

RATE, STEPS = 0.1, 10

with mlflow.start_run(run_name="parabola"), wandb.init(project="parabola", config={"rate": RATE}) as run:
    mlflow.log_param("rate", RATE)
    place = 1.0
    for step in range(STEPS):
        place -= RATE * 2 * place
        mlflow.log_metric("loss", place**2, step=step)
        run.log({"loss": place**2}, step=step)
