/* The C API, called from C. Usage: c_api_program CASE MODEL. Exit code 0: the case holds; 77: it
 * is skipped. */
#include "c_api_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char* model;

void done(moracle_status status, moracle_error** error) {
  if (status != MORACLE_OK) fprintf(stderr, "%s\n", moracle_error_text(*error));
  CHECK(status == MORACLE_OK && *error == NULL);
}

void refused(moracle_status status, moracle_error** error, moracle_status kind, const char* text) {
  CHECK(status == kind);
  CHECK(*error != NULL);
  if (strstr(moracle_error_text(*error), text) == NULL) {
    fprintf(stderr, "'%s' lacks '%s'\n", moracle_error_text(*error), text);
    exit(1);
  }
  moracle_error_free(*error);
}

moracle_checkpoint* opened(void) {
  moracle_checkpoint* checkpoint = NULL;
  moracle_error* error = NULL;
  done(moracle_checkpoint_open(model, &checkpoint, &error), &error);
  return checkpoint;
}

moracle_layer* first_layer(void) {
  moracle_checkpoint* checkpoint = opened();
  moracle_layer* layer = NULL;
  moracle_error* error = NULL;
  done(moracle_layer_from_checkpoint(checkpoint, 0, NULL, &layer, &error), &error);
  moracle_checkpoint_free(checkpoint); /* the layer keeps what it needs */
  return layer;
}

moracle_selection* selected(const moracle_layer* layer, const char* machine_name,
                            const moracle_request* request) {
  moracle_machine* machine = NULL;
  moracle_selection* selection = NULL;
  moracle_error* error = NULL;
  done(moracle_machine_find(machine_name, &machine, &error), &error);
  done(moracle_select(layer, machine, request, &selection, &error), &error);
  moracle_machine_free(machine);
  return selection;
}

moracle_device* cpu(void) {
  moracle_device_options options = {sizeof options};
  moracle_device* device = NULL;
  moracle_error* error = NULL;
  options.threads = 2;
  done(moracle_device_open("cpu", &options, &device, &error), &error);
  return device;
}

moracle_moe* made(moracle_layer* layer, moracle_device* device) {
  moracle_request request = {sizeof request};
  moracle_selection* selection;
  moracle_moe* moe = NULL;
  moracle_error* error = NULL;
  request.device = "cpu";
  selection = selected(layer, NULL, &request);
  done(moracle_moe_make(layer, selection, device, NULL, NULL, &moe, &error), &error);
  moracle_selection_free(selection);
  moracle_layer_free(layer);
  return moe;
}

static int run(const struct named_case* cases, const char* name) {
  for (; cases->name != NULL; ++cases) {
    if (strcmp(cases->name, name) != 0) continue;
    cases->run();
    return 1;
  }
  return 0;
}

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: c_api_program CASE MODEL\n");
    return 2;
  }
  model = arguments[2];
  if (run(describing_cases, arguments[1]) || run(running_cases, arguments[1])) return 0;
  fprintf(stderr, "%s: no such case\n", arguments[1]);
  return 2;
}
