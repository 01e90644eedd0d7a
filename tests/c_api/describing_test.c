/* Errors, arguments, layers and the oracle. */
#include "c_api_program.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void library_has_the_version_of_its_headers(void) {
  char headers[32];
  snprintf(headers, sizeof headers, "%d.%d.%d", MORACLE_VERSION_MAJOR, MORACLE_VERSION_MINOR,
           MORACLE_VERSION_PATCH);
  CHECK(strcmp(moracle_version(), headers) == 0);
}

static void error_has_file_place_need_and_fact(void) {
  moracle_checkpoint* checkpoint = (moracle_checkpoint*)&model; /* becomes null */
  moracle_error* error = NULL;
  CHECK(moracle_checkpoint_open("nowhere", &checkpoint, &error) == MORACLE_BAD_FILE);
  CHECK(checkpoint == NULL);
  CHECK(strcmp(moracle_error_text(error),
               "nowhere: needs the folder of a checkpoint; the folder does not exist") == 0);
  CHECK(strcmp(moracle_error_file(error), "nowhere") == 0);
  CHECK(strcmp(moracle_error_place(error), "") == 0);
  CHECK(strcmp(moracle_error_need(error), "the folder of a checkpoint") == 0);
  CHECK(strcmp(moracle_error_fact(error), "the folder does not exist") == 0);
  moracle_error_free(error);
}

static void error_parameter_may_be_null_and_is_cleared_on_success(void) {
  moracle_checkpoint* checkpoint = NULL;
  moracle_error* error = (moracle_error*)&model;
  CHECK(moracle_checkpoint_open("nowhere", &checkpoint, NULL) != MORACLE_OK);
  CHECK(moracle_checkpoint_open(model, &checkpoint, &error) == MORACLE_OK);
  CHECK(error == NULL);
  moracle_checkpoint_free(checkpoint);
}

static void null_arguments_are_named_and_end_nothing(void) {
  const moracle_status bad = MORACLE_INVALID_ARGUMENT;
  moracle_error* e = NULL;
  moracle_checkpoint* checkpoint = NULL;
  moracle_layer* layer = NULL;
  moracle_machine* machine = NULL;
  moracle_selection* selection = NULL;
  moracle_buffer* buffer = NULL;
  moracle_moe* moe = NULL;
  moracle_routing routing = {sizeof routing};
  char* text = NULL;
  refused(moracle_checkpoint_open(NULL, &checkpoint, &e), &e, bad, "folder: needs a value");
  refused(moracle_checkpoint_open(model, NULL, &e), &e, bad, "out: needs an address");
  refused(moracle_layer_from_checkpoint(NULL, 0, NULL, &layer, &e), &e, bad, "checkpoint");
  refused(moracle_layer_from_tensors(NULL, &layer, &e), &e, bad, "experts");
  refused(moracle_layer_routing(NULL, &routing, &e), &e, bad, "layer");
  refused(moracle_layer_set_routing(NULL, &routing, &e), &e, bad, "layer");
  refused(moracle_machine_find("here", NULL, &e), &e, bad, "out");
  refused(moracle_select(NULL, machine, NULL, &selection, &e), &e, bad, "layer");
  refused(moracle_selection_explain(NULL, 1, &text, &e), &e, bad, "selection");
  refused(moracle_selection_json(NULL, &text, &e), &e, bad, "selection");
  refused(moracle_device_synchronize(NULL, NULL, &e), &e, bad, "device");
  refused(moracle_device_upload(NULL, NULL, NULL, 0, NULL, &e), &e, bad, "device");
  refused(moracle_device_download(NULL, NULL, NULL, 0, NULL, &e), &e, bad, "device");
  refused(moracle_buffer_allocate(NULL, 1, &buffer, &e), &e, bad, "device");
  refused(moracle_moe_make(NULL, NULL, NULL, NULL, NULL, &moe, &e), &e, bad, "layer");
  refused(moracle_moe_apply(NULL, NULL, &e), &e, bad, "moe");
  refused(moracle_route(NULL, NULL, NULL, &e), &e, bad, "device");
  CHECK(moracle_error_text(NULL) == NULL && moracle_error_file(NULL) == NULL);
  CHECK(moracle_error_place(NULL) == NULL && moracle_error_need(NULL) == NULL);
  CHECK(moracle_error_fact(NULL) == NULL && moracle_selection_backend(NULL) == NULL);
  CHECK(moracle_checkpoint_moe_layers(NULL, NULL, 0) == 0);
  CHECK(moracle_layer_num_experts(NULL) == 0 && moracle_layer_hidden_size(NULL) == 0);
  CHECK(moracle_layer_intermediate_size(NULL) == 0 && moracle_layer_top_k(NULL) == 0);
  CHECK(moracle_layer_scheme(NULL) == NULL && moracle_layer_text(NULL) == NULL);
  CHECK(moracle_device_name(NULL) == NULL && moracle_device_activation_dtype(NULL) == -1);
  CHECK(moracle_buffer_data(NULL) == NULL && moracle_moe_weight_bytes(NULL) == 0);
  moracle_error_free(NULL);
  moracle_checkpoint_free(NULL);
  moracle_layer_free(NULL);
  moracle_machine_free(NULL);
  moracle_selection_free(NULL);
  moracle_text_free(NULL);
  moracle_device_free(NULL);
  moracle_buffer_free(NULL);
  moracle_moe_free(NULL);
}

/* A request of headers that have one more member than the library. */
struct newer_request {
  moracle_request known;
  int64_t more;
};

static void structs_of_older_and_newer_headers_work(void) {
  moracle_layer* layer = first_layer();
  moracle_machine* machine = NULL;
  moracle_selection* selection = NULL;
  moracle_error* error = NULL;
  struct newer_request newer = {{sizeof newer}};
  moracle_request unset = {0};
  moracle_request older = {offsetof(moracle_request, device)};
  done(moracle_machine_find("here", &machine, &error), &error);

  refused(moracle_select(layer, machine, &unset, &selection, &error), &error,
          MORACLE_INVALID_ARGUMENT, "request.size: needs sizeof the struct; it is 0");

  older.backend = "reference";
  older.device = "no device"; /* beyond its size: not read */
  done(moracle_select(layer, machine, &older, &selection, &error), &error);
  CHECK(strcmp(moracle_selection_backend(selection), "reference") == 0);
  moracle_selection_free(selection);

  newer.known.backend = "reference";
  done(moracle_select(layer, machine, &newer.known, &selection, &error), &error);
  CHECK(strcmp(moracle_selection_backend(selection), "reference") == 0);
  moracle_selection_free(selection);
  newer.more = 1;
  refused(moracle_select(layer, machine, &newer.known, &selection, &error), &error,
          MORACLE_UNSUPPORTED, "a member of newer headers is set");
  CHECK(selection == NULL);
  moracle_machine_free(machine);
  moracle_layer_free(layer);
}

static void checkpoint_describes_its_layers(void) {
  int64_t layers[8] = {-1, -1, -1};
  moracle_checkpoint* checkpoint = opened();
  moracle_layer* layer = NULL;
  moracle_error* error = NULL;
  CHECK(moracle_checkpoint_moe_layers(checkpoint, NULL, 0) == 3);
  CHECK(moracle_checkpoint_moe_layers(checkpoint, layers, 2) == 3 && layers[2] == -1);
  CHECK(moracle_checkpoint_moe_layers(checkpoint, layers, 8) == 3 && layers[2] == 2);
  done(moracle_layer_from_checkpoint(checkpoint, 2, NULL, &layer, &error), &error);
  CHECK(moracle_layer_num_experts(layer) == 16 && moracle_layer_top_k(layer) == 4);
  CHECK(moracle_layer_hidden_size(layer) == 256);
  CHECK(moracle_layer_intermediate_size(layer) == 128);
  CHECK(strcmp(moracle_layer_scheme(layer), "int4-w4a16-g128") == 0);
  CHECK(strstr(moracle_layer_text(layer), "16 experts, top-4") != NULL);
  moracle_layer_free(layer);
  refused(moracle_layer_from_checkpoint(checkpoint, 3, NULL, &layer, &error), &error,
          MORACLE_INVALID_ARGUMENT, "layer");
  CHECK(layer == NULL);
  refused(moracle_layer_from_checkpoint(checkpoint, 0, "fp8-per-block", &layer, &error), &error,
          MORACLE_UNSUPPORTED, "quantized");
  moracle_checkpoint_free(checkpoint);
}

static void named_machine_answers_without_its_hardware(void) {
  moracle_layer* layer = first_layer();
  moracle_machine* machine = NULL;
  moracle_error* error = NULL;
  moracle_selection* selection = selected(layer, "h200", NULL);
  CHECK(strncmp(moracle_selection_backend(selection), "cuda-", 5) == 0);
  moracle_selection_free(selection);
  refused(moracle_machine_find("h9000", &machine, &error), &error, MORACLE_INVALID_ARGUMENT,
          "h200");
  CHECK(machine == NULL);
  moracle_layer_free(layer);
}

static void selection_explains_as_text_and_as_json(void) {
  moracle_layer* layer = first_layer();
  moracle_error* error = NULL;
  moracle_request request = {sizeof request};
  moracle_selection* selection;
  char *all = NULL, *first = NULL, *json = NULL;
  char chosen[64];
  request.device = "cpu";
  selection = selected(layer, "here", &request);
  done(moracle_selection_explain(selection, 1, &all, &error), &error);
  done(moracle_selection_explain(selection, 0, &first, &error), &error);
  done(moracle_selection_json(selection, &json, &error), &error);
  CHECK(strstr(all, moracle_selection_backend(selection)) != NULL);
  CHECK(strlen(first) <= strlen(all));
  snprintf(chosen, sizeof chosen, "\"chosen\":\"%s\"", moracle_selection_backend(selection));
  CHECK(strstr(json, chosen) != NULL);
  CHECK(strstr(json, "\"backend\":\"cuda-sm90\",\"accepted\":false") != NULL);
  CHECK(strstr(json, "\"rule\":") != NULL);
  moracle_text_free(all);
  moracle_text_free(first);
  moracle_text_free(json);
  moracle_selection_free(selection);
  moracle_layer_free(layer);
}

static void backend_that_cannot_serve_fails_with_its_reasons_and_keeps_the_layer(void) {
  moracle_layer* layer = first_layer();
  moracle_device* device = cpu();
  moracle_moe* moe = NULL;
  moracle_error* error = NULL;
  moracle_request request = {sizeof request};
  moracle_selection* selection;
  request.backend = "opencl-vectors";
  request.device = "cpu";
  selection = selected(layer, NULL, &request);
  CHECK(moracle_selection_backend(selection) == NULL);
  refused(moracle_moe_make(layer, selection, device, NULL, NULL, &moe, &error), &error,
          MORACLE_UNSUPPORTED, "opencl-vectors");
  CHECK(moe == NULL);
  moracle_selection_free(selection);
  moe = made(layer, device);
  moracle_moe_free(moe);
  moracle_device_free(device);
}

const struct named_case describing_cases[] = {
    {"LibraryHasTheVersionOfItsHeaders", library_has_the_version_of_its_headers},
    {"ErrorHasFilePlaceNeedAndFact", error_has_file_place_need_and_fact},
    {"ErrorParameterMayBeNullAndIsClearedOnSuccess",
     error_parameter_may_be_null_and_is_cleared_on_success},
    {"NullArgumentsAreNamedAndEndNothing", null_arguments_are_named_and_end_nothing},
    {"StructsOfOlderAndNewerHeadersWork", structs_of_older_and_newer_headers_work},
    {"CheckpointDescribesItsLayers", checkpoint_describes_its_layers},
    {"NamedMachineAnswersWithoutItsHardware", named_machine_answers_without_its_hardware},
    {"SelectionExplainsAsTextAndAsJson", selection_explains_as_text_and_as_json},
    {"BackendThatCannotServeFailsWithItsReasonsAndKeepsTheLayer",
     backend_that_cannot_serve_fails_with_its_reasons_and_keeps_the_layer},
    {NULL, NULL},
};
