"""What the columns of the demo's tables mean: Dagster shows it, and the tables have it as column docs."""

from typing import Any

import dagster as dg

_COLUMNS = {
    "air_time": ("long", "Minutes in the air."),
    "alt": ("long", "Altitude in feet."),
    "arr_delay": ("long", "Minutes between scheduled and actual arrival; negative if early."),
    "arr_time": ("long", "Actual arrival, local time as HHMM."),
    "arrival_delay": ("int", "Minutes between scheduled and actual arrival; negative if early."),
    "average_delay": ("double", "Average delay on arrival in minutes."),
    "cancelled": ("boolean", "Whether the flight never departed."),
    "carrier": ("string", "Two-letter code of the airline."),
    "cancelled_flights": ("long", "Number of cancelled flights."),
    "cancelled_share": ("double", "Share of scheduled flights that were cancelled."),
    "date": ("date", "Day of the scheduled departure, New York time."),
    "day": ("long", "Day of the month."),
    "delay": ("double", "Average delay on departure in minutes."),
    "delay_before": ("double", "Average delay on departure on the previous day, in minutes."),
    "dep_delay": ("long", "Minutes between scheduled and actual departure; negative if early."),
    "dep_time": ("long", "Actual departure, local time as HHMM; NULL if cancelled."),
    "departure_delay": ("int", "Minutes between scheduled and actual departure; NULL if cancelled."),
    "dest": ("string", "Airport of arrival, FAA code."),
    "destination": ("string", "Name of the airport of arrival."),
    "dewp": ("double", "Dew point in degrees Fahrenheit."),
    "distance": ("long", "Miles between the airports."),
    "dst": ("string", "Daylight saving time: A as in the US, U unknown, N none."),
    "engine": ("string", "Type of the engines."),
    "engines": ("long", "Number of engines."),
    "faa": ("string", "FAA code of the airport."),
    "flight": ("long", "Flight number."),
    "flights": ("long", "Number of scheduled flights."),
    "hour": ("long", "Hour of the scheduled departure, or of the observation."),
    "humid": ("double", "Relative humidity in percent."),
    "last_seen": ("timestamptz", "Hour of the last scheduled departure."),
    "late_share": ("double", "Share of flights that arrived more than 15 minutes late."),
    "lat": ("double", "Latitude."),
    "lon": ("double", "Longitude."),
    "manufacturer": ("string", "Manufacturer of the plane."),
    "miles": ("int", "Miles between the airports."),
    "minute": ("long", "Minute of the scheduled departure."),
    "model": ("string", "Model of the plane."),
    "month": ("long", "Month."),
    "name": ("string", "Full name."),
    "origin": ("string", "Airport of departure in New York, FAA code: EWR, JFK or LGA."),
    "plane_age": ("int", "Years since the plane was built."),
    "precip": ("double", "Precipitation in inches."),
    "pressure": ("double", "Sea level pressure in millibars."),
    "rain": ("double", "Precipitation in inches at the scheduled hour."),
    "sched_arr_time": ("long", "Scheduled arrival, local time as HHMM."),
    "sched_dep_time": ("long", "Scheduled departure, local time as HHMM."),
    "scheduled_hour": ("timestamptz", "Hour of the scheduled departure."),
    "seats": ("long", "Number of seats."),
    "sight": ("string", "Visibility: fog below 1 mile, haze below 5 miles, clear, or unknown."),
    "speed": ("long", "Average cruising speed in miles per hour."),
    "tailnum": ("string", "Registration of the plane."),
    "temp": ("double", "Temperature in degrees Fahrenheit."),
    "time_hour": ("timestamptz", "Hour of the scheduled departure, or of the observation."),
    "type": ("string", "Type of the plane."),
    "total_miles": ("long", "Miles flown so far."),
    "tz": ("long", "Offset of the time zone from GMT in hours."),
    "tzone": ("string", "IANA name of the time zone."),
    "visib": ("double", "Visibility in miles."),
    "visibility": ("double", "Visibility in miles at the scheduled hour."),
    "wind_dir": ("long", "Direction of the wind in degrees."),
    "wind_gust": ("double", "Speed of gusts in miles per hour."),
    "wind_speed": ("double", "Wind speed in miles per hour."),
    "year": ("long", "Year."),
}


def describe_columns(names: str, **meanings: str) -> dict[str, Any]:
    """The metadata that describes some columns.

    Args:
        names: The columns, with blanks between them.
        meanings: For columns that mean something else than those of other tables: the name of their description.
    """
    described = {name: _COLUMNS[meanings.get(name, name)] for name in names.split()}
    columns = [dg.TableColumn(name, type=kind, description=text) for name, (kind, text) in described.items()]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}
