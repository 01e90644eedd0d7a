/* What the files of the C program share: checks, and objects that most cases need. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "moracle/c.h"

struct named_case {
  const char* name;
  void (*run)(void);
};
/* Tables that end with a null name. */
extern const struct named_case describing_cases[], running_cases[];

/* The folder of the model. */
extern const char* model;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* A call that must succeed. */
void done(moracle_status status, moracle_error** error);
/* A call that must fail with `kind`, and with `text` in its message. Frees the error. */
void refused(moracle_status status, moracle_error** error, moracle_status kind, const char* text);
moracle_checkpoint* opened(void);
moracle_layer* first_layer(void);
moracle_selection* selected(const moracle_layer* layer, const char* machine_name,
                            const moracle_request* request);
moracle_device* cpu(void);
/* The layer's experts on a CPU; frees the layer. */
moracle_moe* made(moracle_layer* layer, moracle_device* device);
