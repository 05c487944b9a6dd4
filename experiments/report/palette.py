from experiments.report.chart import *
from experiments.report.chart import COLOURS, LINE_DASHES, SYMBOLS, assign_styles


def assign_colours(n):
    return {k: v.colour for k, v in assign_styles(n).items()}


def assign_symbols(n):
    return {k: v.symbol for k, v in assign_styles(n).items()}


def assign_dashes(n):
    return {k: v.dash for k, v in assign_styles(n).items()}
