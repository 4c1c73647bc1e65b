"""Reports for people, made from records alone."""

from gradcore.report.built import build_report
from gradcore.report.diff import Diff, compare
from gradcore.report.packed import pack, unpack
from gradcore.report.recording import Recording
from gradcore.report.run import Run, RunWriter, StepFigures, load_run
from gradcore.report.step import SCHEMA_VERSION, StepReport, load_report

__all__ = ["SCHEMA_VERSION", "Diff", "Recording", "Run", "RunWriter", "StepFigures", "StepReport", "build_report", "compare",
           "load_report", "load_run", "pack", "unpack"]
