/*
 * How many rows of a ticket the experts compute at a time, in a pass that goes in pieces (td_bridge_pass.until_ns). Times in
 * nanoseconds.
 */
#ifndef TD_BRIDGE_ROW_PACE_H
#define TD_BRIDGE_ROW_PACE_H

#include <stdint.h>

/** With fewer rows at a time the experts' weights are read too often, so a ticket is not cut into less. */
#define TD_ROWS_AT_LEAST 128

/** What is known of rows and of the time for them. */
typedef struct {
    double row_ns;  /* what a row took the last time; 0: not known, all rows fit */
    double left_ns; /* until the piece ends; infinite where it only ends since it is waited for */
    double part_ns; /* how long rows are computed without a look at who waits; 0: until the piece ends */
} td_row_time;

/**
 * @param left rows of the ticket that are not computed, 1 at the least
 * @return how many of them are computed next: as many as end with the piece; with part_ns in parts that each take that long, or
 * up to twice that. 0: there is time for fewer than TD_ROWS_AT_LEAST, or than what is left of them.
 */
uint32_t td_rows_in_time(const td_row_time *t, uint32_t left);

#endif
