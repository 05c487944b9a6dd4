# Types of what fedge/__init__.py resolves at its first use, for type checkers and editors.

from experiments.api import boards as boards
from experiments.api import calibrate as calibrate
from experiments.api import choose as choose
from experiments.api import compare as compare
from experiments.api import doctor as doctor
from experiments.api import evaluate_predictors as evaluate_predictors
from experiments.api import export as export
from experiments.api import front as front
from experiments.api import layers as layers
from experiments.api import load as load
from experiments.api import load_model as load_model
from experiments.api import memory as memory
from experiments.api import place as place
from experiments.api import plan_concurrent as plan_concurrent
from experiments.api import predict as predict
from experiments.api import profile as profile
from experiments.api import replay as replay
from experiments.api import resume as resume
from experiments.api import roofline as roofline
from experiments.api import run as run
from experiments.api import runs as runs
from experiments.api import select_board as select_board
from experiments.api import study_fleet as study_fleet
from experiments.api import study_mode_choice as study_mode_choice
from experiments.api import sweep as sweep
from experiments.api import to_table as to_table
from experiments.api import topology as topology
from experiments.run_results import Run as Run
from experiments.run_results import RunComparison as RunComparison

__version__: str
