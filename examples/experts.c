/* One layer of experts from C, on the CPU: experts_c MODEL */
#include <math.h>
#include <moracle/c.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 4 };

static moracle_error* error;

/* Ends the program if a call has failed. */
static void check(moracle_status status) {
  if (status == MORACLE_OK) return;
  fprintf(stderr, "%s\n", error ? moracle_error_text(error) : "out of memory");
  moracle_error_free(error);
  exit(1);
}

static void* zeros(int64_t count, size_t size) {
  void* memory = calloc((size_t)count, size);
  if (memory == NULL) exit(1);
  return memory;
}

int main(int count, char** arguments) {
  moracle_checkpoint* checkpoint;
  moracle_layer* layer;
  moracle_machine* machine;
  moracle_selection* selection;
  moracle_device* device;
  moracle_moe* moe;
  moracle_request request = {sizeof request}; /* all other members: defaults */
  moracle_routing routing = {sizeof routing};
  moracle_route_call route = {sizeof route};
  moracle_moe_call call = {sizeof call};
  char* text;
  float *hidden, *output, *logits, *weights;
  int32_t* ids;
  int64_t first, size, experts, top_k, i;
  double squares = 0;
  if (count != 2) {
    fprintf(stderr, "usage: experts_c MODEL\n");
    return 2;
  }

  check(moracle_checkpoint_open(arguments[1], &checkpoint, &error));
  if (moracle_checkpoint_moe_layers(checkpoint, &first, 1) == 0) return 1;
  check(moracle_layer_from_checkpoint(checkpoint, first, NULL, &layer, &error));
  printf("%s\n", moracle_layer_text(layer));

  check(moracle_machine_find("here", &machine, &error));
  request.device = "cpu";
  request.max_num_tokens = kTokens;
  check(moracle_select(layer, machine, &request, &selection, &error));
  check(moracle_selection_explain(selection, 0, &text, &error));
  printf("%s", text);
  moracle_text_free(text);

  check(moracle_device_open("cpu", NULL, &device, &error));
  check(moracle_moe_make(layer, selection, device, NULL, NULL, &moe, &error)); /* reads and packs */

  size = moracle_layer_hidden_size(layer);
  experts = moracle_layer_num_experts(layer);
  top_k = moracle_layer_top_k(layer);
  hidden = zeros(kTokens * size, sizeof *hidden);
  output = zeros(kTokens * size, sizeof *output);
  logits = zeros(kTokens * experts, sizeof *logits);
  weights = zeros(kTokens * top_k, sizeof *weights);
  ids = zeros(kTokens * top_k, sizeof *ids);
  for (i = 0; i < kTokens * size; ++i) hidden[i] = sinf(0.37f * (float)i);
  for (i = 0; i < kTokens * experts; ++i) logits[i] = cosf(1.7f * (float)i);

  check(moracle_layer_routing(layer, &routing, &error));
  route.num_tokens = kTokens;
  route.num_experts = experts;
  route.top_k = top_k;
  route.logits = logits;
  route.topk_ids = ids;
  route.topk_weights = weights;
  check(moracle_route(device, &routing, &route, &error));

  call.num_tokens = kTokens;
  call.hidden = hidden; /* MORACLE_F32 is 0, so that the dtypes are set */
  call.output = output;
  call.topk_ids = ids;
  call.topk_weights = weights;
  check(moracle_moe_apply(moe, &call, &error));

  for (i = 0; i < kTokens * size; ++i) squares += (double)output[i] * output[i];
  printf("root mean square of the output: %.4f\n", sqrt(squares / (double)(kTokens * size)));

  free(hidden);
  free(output);
  free(logits);
  free(weights);
  free(ids);
  moracle_moe_free(moe);
  moracle_device_free(device);
  moracle_selection_free(selection);
  moracle_machine_free(machine);
  moracle_layer_free(layer);
  moracle_checkpoint_free(checkpoint);
  return 0;
}
