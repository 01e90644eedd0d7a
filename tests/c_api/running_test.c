/* Experts, routers and devices. */
#include "c_api_program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHidden = 32, kInner = 32, kExperts = 3, kTopK = 2, kTokens = 4 };

/* Experts of whole numbers so small that every kernel computes them exactly: relu(u)^2 without a
   gate, where expert e adds (e + 1) of the input's first numbers. */
struct exact_experts {
  float w13[kExperts][kInner][kHidden];
  float w2[kExperts][kHidden][kInner];
  int64_t w13_shape[3], w2_shape[3];
  moracle_experts experts;
};

static void fill(struct exact_experts* exact) {
  int e, i;
  memset(exact, 0, sizeof *exact);
  for (e = 0; e < kExperts; ++e) {
    for (i = 0; i < kInner; ++i) {
      exact->w13[e][i][i] = (float)(e + 1);
      exact->w2[e][kHidden - 1 - i][i] = 1;
    }
  }
  exact->w13_shape[0] = exact->w2_shape[0] = kExperts;
  exact->w13_shape[1] = exact->w2_shape[2] = kInner;
  exact->w13_shape[2] = exact->w2_shape[1] = kHidden;
  exact->experts.size = sizeof exact->experts;
  exact->experts.w13.weight.data = exact->w13;
  exact->experts.w13.weight.shape = exact->w13_shape;
  exact->experts.w13.weight.rank = 3;
  exact->experts.w2.weight.data = exact->w2;
  exact->experts.w2.weight.shape = exact->w2_shape;
  exact->experts.w2.weight.rank = 3;
  exact->experts.scheme = "f32";
  exact->experts.activation = "relu2_no_mul";
  exact->experts.top_k = kTopK;
}

static moracle_layer* exact_layer(const struct exact_experts* exact) {
  moracle_layer* layer = NULL;
  moracle_error* error = NULL;
  done(moracle_layer_from_tensors(&exact->experts, &layer, &error), &error);
  return layer;
}

static float expert_of(int e, float x) {
  const float u = x * (float)(e + 1);
  return u > 0 ? u * u : 0;
}

static void experts_from_tensors_compute_exact_sums(void) {
  static struct exact_experts exact;
  moracle_device* device = cpu();
  moracle_error* error = NULL;
  moracle_moe* moe;
  float hidden[kTokens][kHidden + 3] = {{0}}, output[kTokens][kHidden + 5] = {{0}};
  int32_t ids[kTokens][kTopK] = {{0, 1}, {2, 0}, {-1, 1}, {-1, -1}};
  float weights[kTokens][kTopK] = {{1, 2}, {0.5f, 4}, {8, 1}, {1, 1}};
  moracle_moe_call call = {sizeof call};
  int t, i, j;
  fill(&exact);
  moe = made(exact_layer(&exact), device);
  memset(&exact, 0, sizeof exact); /* the weights are packed */
  for (t = 0; t < kTokens; ++t) {
    for (i = 0; i < kHidden; ++i) hidden[t][i] = (float)((i + t) % 5 - 2);
    for (i = 0; i < kHidden + 5; ++i) output[t][i] = -7;
  }
  call.num_tokens = kTokens;
  call.hidden = hidden;
  call.hidden_stride = kHidden + 3;
  call.output = output;
  call.output_stride = kHidden + 5;
  call.topk_ids = &ids[0][0];
  call.topk_weights = &weights[0][0];
  done(moracle_moe_apply(moe, &call, &error), &error);
  done(moracle_device_synchronize(device, NULL, &error), &error);
  for (t = 0; t < kTokens; ++t) {
    for (i = 0; i < kHidden; ++i) {
      float want = 0;
      for (j = 0; j < kTopK; ++j)
        if (ids[t][j] >= 0)
          want += weights[t][j] * expert_of(ids[t][j], hidden[t][kHidden - 1 - i]);
      CHECK(output[t][i] == want);
    }
    for (i = kHidden; i < kHidden + 5; ++i) CHECK(output[t][i] == -7);
  }
  CHECK(moracle_moe_weight_bytes(moe) > 0);
  moracle_moe_free(moe);
  moracle_device_free(device);
}

static void sixteen_bit_activations_are_read_and_written(void) {
  static struct exact_experts exact;
  moracle_device* device = cpu();
  moracle_error* error = NULL;
  moracle_moe* moe;
  uint16_t hidden[kHidden], output[kHidden]; /* bf16: the upper half of f32 */
  int32_t ids[kTopK] = {0, -1};
  float weights[kTopK] = {1, 0};
  moracle_moe_call call = {sizeof call};
  int i;
  fill(&exact);
  moe = made(exact_layer(&exact), device);
  for (i = 0; i < kHidden; ++i) hidden[i] = i % 2 == 0 ? 0x4000 /* 2 */ : 0xc000 /* -2 */;
  call.num_tokens = 1;
  call.hidden = hidden;
  call.hidden_dtype = MORACLE_BF16;
  call.output = output;
  call.output_dtype = MORACLE_BF16;
  call.topk_ids = ids;
  call.topk_weights = weights;
  done(moracle_moe_apply(moe, &call, &error), &error);
  for (i = 0; i < kHidden; ++i) CHECK(output[kHidden - 1 - i] == (i % 2 == 0 ? 0x4080 /* 4 */ : 0));
  moracle_moe_free(moe);
  moracle_device_free(device);
}

/* A rank holds the experts of its map alone; the sum of the ranks is the layer. */
static void ranks_with_some_of_the_experts_add_up(void) {
  static struct exact_experts exact, own;
  const int32_t maps[2][kExperts] = {{1, -1, 0}, {-1, 0, -1}};
  moracle_device* device = cpu();
  moracle_error* error = NULL;
  float hidden[kHidden], output[2][kHidden];
  int32_t ids[kTopK] = {2, 1};
  float weights[kTopK] = {1, 2};
  moracle_moe_call call = {sizeof call};
  int rank, e, i;
  fill(&exact);
  for (i = 0; i < kHidden; ++i) hidden[i] = (float)(i % 3 - 1);
  call.num_tokens = 1;
  call.hidden = hidden;
  call.topk_ids = ids;
  call.topk_weights = weights;
  for (rank = 0; rank < 2; ++rank) {
    moracle_request request = {sizeof request};
    moracle_layer* layer = NULL;
    moracle_selection* selection;
    moracle_moe* moe = NULL;
    fill(&own);
    for (e = 0; e < kExperts; ++e) {
      if (maps[rank][e] < 0) continue;
      memcpy(own.w13[maps[rank][e]], exact.w13[e], sizeof exact.w13[e]);
      memcpy(own.w2[maps[rank][e]], exact.w2[e], sizeof exact.w2[e]);
    }
    own.w13_shape[0] = own.w2_shape[0] = 2 - rank;
    own.experts.expert_map = maps[rank];
    own.experts.num_experts = kExperts;
    layer = exact_layer(&own);
    CHECK(moracle_layer_num_experts(layer) == kExperts);
    request.device = "cpu";
    request.expert_map = maps[rank];
    selection = selected(layer, NULL, &request);
    done(moracle_moe_make(layer, selection, device, NULL, NULL, &moe, &error), &error);
    call.output = output[rank];
    done(moracle_moe_apply(moe, &call, &error), &error);
    moracle_moe_free(moe);
    moracle_selection_free(selection);
    moracle_layer_free(layer);
  }
  done(moracle_device_synchronize(device, NULL, &error), &error);
  for (i = 0; i < kHidden; ++i) {
    const float x = hidden[kHidden - 1 - i];
    CHECK(output[0][i] == expert_of(2, x));
    CHECK(output[1][i] == 2 * expert_of(1, x));
  }
  moracle_device_free(device);
}

/* On a GPU if there is one: device memory of the library, and its own queue. */
static void experts_run_on_device_memory(void) {
  static struct exact_experts exact;
  static const char* const names[] = {"cuda", "opencl"};
  moracle_device_options options = {sizeof options};
  moracle_device* device = NULL;
  moracle_error* error = NULL;
  moracle_request request = {sizeof request};
  moracle_layer* layer;
  moracle_selection* selection;
  moracle_moe* moe = NULL;
  moracle_buffer* buffer = NULL;
  moracle_moe_call call = {sizeof call};
  struct memory {
    float hidden[kHidden], output[kHidden], weights[kTopK];
    int32_t ids[kTopK];
  } memory = {{0}, {0}, {1, 4}, {2, 0}}, *there;
  char cache[4096];
  size_t i;
  if (getenv("XDG_CACHE_HOME") != NULL) {
    snprintf(cache, sizeof cache, "%s/moracle-test-kernels", getenv("XDG_CACHE_HOME"));
    options.kernel_cache = cache;
  }
  for (i = 0; i < sizeof names / sizeof *names && device == NULL; ++i) {
    request.device = names[i];
    if (moracle_device_open(names[i], &options, &device, &error) != MORACLE_OK) {
      printf("skipped: %s\n", moracle_error_text(error));
      moracle_error_free(error);
    }
  }
  if (device == NULL) exit(77);
  fill(&exact);
  layer = exact_layer(&exact);
  selection = selected(layer, NULL, &request);
  done(moracle_moe_make(layer, selection, device, NULL, NULL, &moe, &error), &error);
  for (i = 0; i < kHidden; ++i) memory.hidden[i] = (float)((int)i % 5 - 2);
  done(moracle_buffer_allocate(device, sizeof memory, &buffer, &error), &error);
  there = moracle_buffer_data(buffer);
  done(moracle_device_upload(device, there, &memory, sizeof memory, NULL, &error), &error);
  call.num_tokens = 1;
  call.hidden = there->hidden;
  call.output = there->output;
  call.topk_ids = there->ids;
  call.topk_weights = there->weights;
  done(moracle_moe_apply(moe, &call, &error), &error);
  done(moracle_device_download(device, &memory, there, sizeof memory, NULL, &error), &error);
  done(moracle_device_synchronize(device, NULL, &error), &error);
  for (i = 0; i < kHidden; ++i) {
    const float x = (float)((int)(kHidden - 1 - i) % 5 - 2);
    CHECK(memory.output[i] == expert_of(2, x) + 4 * expert_of(0, x));
  }
  moracle_buffer_free(buffer);
  moracle_moe_free(moe);
  moracle_selection_free(selection);
  moracle_layer_free(layer);
  moracle_device_free(device);
}

static void calls_that_do_not_fit_are_refused_by_name(void) {
  static struct exact_experts exact;
  moracle_device* device = cpu();
  moracle_layer* layer = NULL;
  moracle_error* error = NULL;
  moracle_moe* moe;
  moracle_moe_call call = {sizeof call};
  float hidden[kHidden] = {0}, output[kHidden];
  int32_t ids[kTopK] = {0, 1};
  float weights[kTopK] = {1, 1};
  fill(&exact);
  exact.w2_shape[2] = kInner - 1;
  refused(moracle_layer_from_tensors(&exact.experts, &layer, &error), &error,
          MORACLE_INVALID_ARGUMENT, "w2");
  fill(&exact);
  exact.w13_shape[0] = -3;
  refused(moracle_layer_from_tensors(&exact.experts, &layer, &error), &error,
          MORACLE_INVALID_ARGUMENT, "w13.shape[0]: needs a size of at least 0");
  exact.w13_shape[0] = INT64_MAX;
  refused(moracle_layer_from_tensors(&exact.experts, &layer, &error), &error,
          MORACLE_INVALID_ARGUMENT, "w13.shape[0]");
  fill(&exact);
  exact.experts.w13.weight.dtype = 99;
  refused(moracle_layer_from_tensors(&exact.experts, &layer, &error), &error,
          MORACLE_INVALID_ARGUMENT, "w13.dtype: needs a value of moracle_dtype; it is 99");
  fill(&exact);
  exact.experts.w13.weight.rank = 9;
  refused(moracle_layer_from_tensors(&exact.experts, &layer, &error), &error,
          MORACLE_INVALID_ARGUMENT, "w13.rank");
  fill(&exact);
  exact.experts.scheme = "int3";
  refused(moracle_layer_from_tensors(&exact.experts, &layer, &error), &error,
          MORACLE_INVALID_ARGUMENT, "int3");
  fill(&exact);
  moe = made(exact_layer(&exact), device);
  call.hidden = hidden;
  call.output = output;
  call.topk_ids = ids;
  call.topk_weights = weights;
  done(moracle_moe_apply(moe, &call, &error), &error); /* no tokens */
  call.num_tokens = 513;
  refused(moracle_moe_apply(moe, &call, &error), &error, MORACLE_INVALID_ARGUMENT, "512 rows");
  call.num_tokens = -1;
  refused(moracle_moe_apply(moe, &call, &error), &error, MORACLE_INVALID_ARGUMENT, "hidden");
  call.num_tokens = 1;
  call.output_dtype = MORACLE_I8;
  refused(moracle_moe_apply(moe, &call, &error), &error, MORACLE_INVALID_ARGUMENT, "output");
  call.output_dtype = -1;
  refused(moracle_moe_apply(moe, &call, &error), &error, MORACLE_INVALID_ARGUMENT,
          "call.output.dtype");
  call.output_dtype = MORACLE_F32;
  call.topk_ids = NULL;
  refused(moracle_moe_apply(moe, &call, &error), &error, MORACLE_INVALID_ARGUMENT, "topk_ids");
  moracle_moe_free(moe);
  moracle_device_free(device);
}

static void unknown_ids_are_reported_once(void) {
  static struct exact_experts exact;
  moracle_device* device = cpu();
  moracle_error* error = NULL;
  moracle_moe* moe;
  moracle_moe_call call = {sizeof call};
  float hidden[kHidden] = {0}, output[kHidden];
  int32_t ids[kTopK] = {0, kExperts};
  float weights[kTopK] = {1, 1};
  fill(&exact);
  moe = made(exact_layer(&exact), device);
  call.num_tokens = 1;
  call.hidden = hidden;
  call.output = output;
  call.topk_ids = ids;
  call.topk_weights = weights;
  done(moracle_moe_apply(moe, &call, &error), &error);
  CHECK(moracle_device_synchronize(device, NULL, &error) != MORACLE_OK && error != NULL);
  moracle_error_free(error);
  done(moracle_device_synchronize(device, NULL, &error), &error);
  moracle_moe_free(moe);
  moracle_device_free(device);
}

static void layer_is_used_up_once(void) {
  moracle_layer* layer = first_layer();
  moracle_device* device = cpu();
  moracle_request request = {sizeof request};
  moracle_routing routing = {sizeof routing};
  moracle_moe *moe = NULL, *second = NULL;
  moracle_error* error = NULL;
  moracle_selection* selection;
  request.device = "cpu";
  selection = selected(layer, NULL, &request);
  done(moracle_moe_make(layer, selection, device, NULL, NULL, &moe, &error), &error);
  refused(moracle_moe_make(layer, selection, device, NULL, NULL, &second, &error), &error,
          MORACLE_INVALID_ARGUMENT, "consumed them");
  refused(moracle_layer_set_routing(layer, &routing, &error), &error, MORACLE_INVALID_ARGUMENT,
          "consumed them");
  CHECK(second == NULL && moracle_layer_top_k(layer) == 4);
  moracle_device_free(device); /* the experts keep what they need */
  moracle_selection_free(selection);
  moracle_layer_free(layer);
  CHECK(moracle_moe_weight_bytes(moe) > 0);
  moracle_moe_free(moe);
}

static int32_t stop(int64_t bytes, int64_t total, void* user) {
  CHECK(bytes <= total);
  ++*(int*)user;
  return 0;
}

static void progress_function_stops_the_work(void) {
  moracle_layer* layer = first_layer();
  moracle_device* device = cpu();
  moracle_request request = {sizeof request};
  moracle_selection* selection;
  moracle_moe* moe = NULL;
  moracle_error* error = NULL;
  int calls = 0;
  request.device = "cpu";
  selection = selected(layer, NULL, &request);
  CHECK(moracle_moe_make(layer, selection, device, stop, &calls, &moe, &error) ==
        MORACLE_CANCELLED);
  CHECK(calls > 0 && moe == NULL && error != NULL);
  moracle_error_free(error);
  moracle_selection_free(selection);
  moracle_layer_free(layer);
  moracle_device_free(device);
}

static void buffers_hold_what_was_copied(void) {
  moracle_device* device = cpu();
  moracle_buffer* buffer = NULL;
  moracle_error* error = NULL;
  const int32_t from[3] = {1, -2, 3};
  int32_t to[4] = {9, 9, 9, 9};
  CHECK(strcmp(moracle_device_name(device), "cpu") == 0);
  CHECK(moracle_device_activation_dtype(device) == MORACLE_F32);
  done(moracle_buffer_allocate(device, sizeof to, &buffer, &error), &error);
  moracle_device_free(device); /* the buffer keeps what it needs */
  device = cpu();
  done(moracle_device_upload(device, moracle_buffer_data(buffer), from, sizeof from, NULL, &error),
       &error);
  done(moracle_device_download(device, to, moracle_buffer_data(buffer), sizeof to, NULL, &error),
       &error);
  done(moracle_device_synchronize(device, NULL, &error), &error);
  CHECK(to[0] == 1 && to[1] == -2 && to[2] == 3 && to[3] == 0);
  moracle_buffer_free(buffer);
  refused(moracle_device_upload(device, NULL, from, 1, NULL, &error), &error,
          MORACLE_INVALID_ARGUMENT, "to: needs a value");
  refused(moracle_buffer_allocate(device, (size_t)1 << 62, &buffer, &error), &error,
          MORACLE_OUT_OF_MEMORY, "memory");
  moracle_device_free(device);
}

static void unknown_devices_are_refused(void) {
  moracle_device_options options = {sizeof options};
  moracle_device* device = NULL;
  moracle_error* error = NULL;
  refused(moracle_device_open("abacus", NULL, &device, &error), &error, MORACLE_INVALID_ARGUMENT,
          "abacus");
  options.threads = -1;
  refused(moracle_device_open(NULL, &options, &device, &error), &error, MORACLE_INVALID_ARGUMENT,
          "threads");
  CHECK(device == NULL);
}

struct engine {
  int64_t live, taken, jobs, tasks;
  size_t next;
};
static void* engine_allocate(void* data, size_t bytes) {
  struct engine* engine = data;
  static char memory[16 << 20]; /* never used twice */
  char* const first = memory + (64 - (uintptr_t)memory % 64) % 64 + engine->next;
  if (first + bytes > memory + sizeof memory) return NULL;
  engine->next += (bytes + 63) / 64 * 64;
  engine->live += (int64_t)bytes;
  engine->taken += (int64_t)bytes;
  return first;
}
static void engine_free(void* data, void* memory, size_t bytes) {
  struct engine* engine = data;
  if (memory != NULL) engine->live -= (int64_t)bytes;
}
static void engine_run(void* data, int32_t count, moracle_task task, void* context) {
  struct engine* engine = data;
  int32_t i;
  ++engine->jobs;
  for (i = 0; i < count; ++i, ++engine->tasks) task(context, i);
}

static void devices_use_the_engines_memory_and_threads(void) {
  static struct exact_experts exact;
  struct engine engine = {0, 0, 0, 0, 0};
  moracle_device_options options = {sizeof options};
  moracle_device* device = NULL;
  moracle_error* error = NULL;
  moracle_moe* moe;
  options.threads = 2;
  options.engine = &engine;
  options.allocate = engine_allocate;
  refused(moracle_device_open("cpu", &options, &device, &error), &error, MORACLE_INVALID_ARGUMENT,
          "free");
  options.free = engine_free;
  options.run_tasks = engine_run;
  done(moracle_device_open("cpu", &options, &device, &error), &error);
  fill(&exact);
  moe = made(exact_layer(&exact), device);
  CHECK(engine.taken > moracle_moe_weight_bytes(moe));
  CHECK(engine.jobs > 0 && engine.tasks == 2 * engine.jobs);
  moracle_moe_free(moe);
  moracle_device_free(device);
  CHECK(engine.live == 0);
}

static void router_chooses_and_weighs(void) {
  moracle_layer* layer = first_layer();
  moracle_device* device = cpu();
  moracle_error* error = NULL;
  moracle_routing routing = {sizeof routing};
  moracle_route_call call = {sizeof call};
  float logits[2][4] = {{0, 2, 1, -1}, {3, 3, 0, 0}};
  int32_t ids[2][2];
  float weights[2][2];
  done(moracle_layer_routing(layer, &routing, &error), &error);
  CHECK(routing.score == MORACLE_SOFTMAX && routing.renormalize != 0 && routing.num_groups == 1);
  call.num_tokens = 2;
  call.num_experts = 4;
  call.top_k = 2;
  call.logits = logits;
  call.topk_ids = &ids[0][0];
  call.topk_weights = &weights[0][0];
  done(moracle_route(device, &routing, &call, &error), &error);
  CHECK(ids[0][0] == 1 && ids[0][1] == 2 && ids[1][0] == 0 && ids[1][1] == 1);
  CHECK(fabsf(weights[0][0] - 1 / (1 + expf(-1))) < 1e-6f);
  CHECK(fabsf(weights[0][0] + weights[0][1] - 1) < 1e-6f);
  CHECK(weights[1][0] == 0.5f && weights[1][1] == 0.5f);
  call.top_k = 5;
  refused(moracle_route(device, &routing, &call, &error), &error, MORACLE_INVALID_ARGUMENT,
          "1 to 4 experts per token");
  routing.score = 77;
  refused(moracle_route(device, &routing, &call, &error), &error, MORACLE_INVALID_ARGUMENT,
          "routing.score");
  routing.score = MORACLE_SIGMOID;
  done(moracle_layer_set_routing(layer, &routing, &error), &error);
  routing.score = MORACLE_SOFTMAX;
  done(moracle_layer_routing(layer, &routing, &error), &error);
  CHECK(routing.score == MORACLE_SIGMOID);
  moracle_layer_free(layer);
  moracle_device_free(device);
}

const struct named_case running_cases[] = {
    {"ExpertsFromTensorsComputeExactSums", experts_from_tensors_compute_exact_sums},
    {"SixteenBitActivationsAreReadAndWritten", sixteen_bit_activations_are_read_and_written},
    {"RanksWithSomeOfTheExpertsAddUp", ranks_with_some_of_the_experts_add_up},
    {"ExpertsRunOnDeviceMemory", experts_run_on_device_memory},
    {"CallsThatDoNotFitAreRefusedByName", calls_that_do_not_fit_are_refused_by_name},
    {"UnknownIdsAreReportedOnce", unknown_ids_are_reported_once},
    {"LayerIsUsedUpOnce", layer_is_used_up_once},
    {"ProgressFunctionStopsTheWork", progress_function_stops_the_work},
    {"BuffersHoldWhatWasCopied", buffers_hold_what_was_copied},
    {"UnknownDevicesAreRefused", unknown_devices_are_refused},
    {"DevicesUseTheEnginesMemoryAndThreads", devices_use_the_engines_memory_and_threads},
    {"RouterChoosesAndWeighs", router_chooses_and_weighs},
    {NULL, NULL},
};
