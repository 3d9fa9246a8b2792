/* The texts of --device, which are made from the list of backends. */
#ifndef TD_CLI_DEVICE_FLAG_H
#define TD_CLI_DEVICE_FLAG_H

#define TD_DEVICE_CHOICES_MAX 32

typedef struct {
    const char *names[TD_DEVICE_CHOICES_MAX + 1];   /* of the backends, then NULL */
    const char *choices[TD_DEVICE_CHOICES_MAX + 1]; /* "auto", and the names with their aliases, as td_flag.choices */
    char        help[1024];
    char        refusal[256];
} td_device_flag;

/** Rows of the flag tables point to these texts, which td_device_flag_fill writes. */
extern td_device_flag td_device_flag_texts;

/** Fill the texts. Call it on the main thread before the rows are used; a second call changes nothing. */
void td_device_flag_fill(void);

#endif
