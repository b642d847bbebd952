// The proleptic Gregorian calendar, from days since 1970-01-01.
//
// A year is counted from March, so that the leap day ends it; 400 years are 146,097 days. The
// arithmetic is H. Hinnant's, "chrono-compatible low-level date algorithms".
#pragma once

#include "types.cuh"

struct Civil {
    i64 year;
    i32 month;  // 1 to 12
    i32 day;    // 1 to 31
};

__device__ inline i64 floor_div(i64 a, i64 b) {
    i64 quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

__device__ inline Civil civil_of_days(i64 days) {
    days += 719468;
    i64 era = floor_div(days, 146097);
    i32 day_of_era = static_cast<i32>(days - era * 146097);
    i32 year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    i32 day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    i32 month = (5 * day_of_year + 2) / 153;
    Civil civil;
    civil.day = day_of_year - (153 * month + 2) / 5 + 1;
    civil.month = month < 10 ? month + 3 : month - 9;
    civil.year = era * 400 + year_of_era + (civil.month <= 2);
    return civil;
}

__device__ inline i64 days_of_civil(i64 year, i32 month, i32 day) {
    year -= month <= 2;
    i64 era = floor_div(year, 400);
    i32 year_of_era = static_cast<i32>(year - era * 400);
    i32 day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    i32 day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + day_of_era - 719468;
}

// From 1 on.
__device__ inline i64 day_of_year(i64 days) {
    return days - days_of_civil(civil_of_days(days).year, 1, 1) + 1;
}

// The year and week of ISO 8601: those of the Thursday of the same week.
__device__ inline i64 thursday(i64 days) {
    i64 since_monday = days + 3 - floor_div(days + 3, 7) * 7;
    return days - since_monday + 3;
}

__device__ inline i64 iso_year(i64 days) { return civil_of_days(thursday(days)).year; }

__device__ inline i64 iso_week(i64 days) { return (day_of_year(thursday(days)) - 1) / 7 + 1; }
