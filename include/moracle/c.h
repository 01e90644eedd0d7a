// The experts from C, and from every language that calls C: opaque handles and plain structs, no
// C++ types. docs/c.md shows programs and the rules for bindings. Link libmoracle_c.
//
// Rules of all functions:
// - A function that can fail returns a moracle_status. MORACLE_OK is 0.
// - The last parameter, `error`, may be null. Otherwise *error becomes null on success, and on
//   failure an object that describes the failure and that the caller frees. If even that object
//   finds no memory, *error is null and the status is MORACLE_OUT_OF_MEMORY.
// - `out` parameters become null on failure. They and `error` are overwritten, never freed.
// - A null handle is an error of kind MORACLE_INVALID_ARGUMENT. Functions without a status return 0
//   or null for it. Each *_free accepts null.
// - Texts are UTF-8 and end with a zero byte. A returned `const char*` lives as long as its handle.
// - Handles keep alive what they use: free them in any order, each once.
// - No C++ exception leaves a function, and no function ends the process.
// - Several threads may use one handle, except while one of them frees it or makes a layer of it.
// - A struct with a member `size` grows with the library. Set it to sizeof the struct and all other
//   members to 0 or to a value: `moracle_request request = {sizeof request};`. A member that is 0
//   has its default.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "moracle/export.h"
#include "moracle/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/// The version of the loaded library: "0.1.0". The headers have MORACLE_VERSION_MAJOR and others.
MORACLE_API const char* moracle_version(void);

// ---- errors ----

typedef int32_t moracle_status;
enum {
  MORACLE_OK = 0,
  MORACLE_INVALID_ARGUMENT = 1,  ///< the caller's arguments make no sense
  MORACLE_BAD_FILE = 2,          ///< the file's content contradicts its format or its config
  MORACLE_UNSUPPORTED = 3,       ///< a valid request that no code here can serve
  MORACLE_IO = 4,                ///< the system refused a file or a device
  MORACLE_OUT_OF_MEMORY = 5,
  MORACLE_CANCELLED = 6,  ///< the progress function returned 0
  MORACLE_INTERNAL = 7    ///< a defect of the library; the text says which
};

/// Why a call failed.
typedef struct moracle_error moracle_error;
/// One line: "file: place: needs <need>; <fact>". Empty parts are left out.
MORACLE_API const char* moracle_error_text(const moracle_error* error);
/// The parts of the text; "" where there is none. file: file or folder. place: tensor, key, layer
/// or argument. need: the required value or state. fact: the value or state that was found.
MORACLE_API const char* moracle_error_file(const moracle_error* error);
MORACLE_API const char* moracle_error_place(const moracle_error* error);
MORACLE_API const char* moracle_error_need(const moracle_error* error);
MORACLE_API const char* moracle_error_fact(const moracle_error* error);
MORACLE_API void moracle_error_free(moracle_error* error);

// ---- values ----

/// Element types. MORACLE_I4 is two signed 4-bit codes in one byte.
typedef int32_t moracle_dtype;
enum {
  MORACLE_F32 = 0,
  MORACLE_F16 = 1,
  MORACLE_BF16 = 2,
  MORACLE_F64 = 3,
  MORACLE_I64 = 4,
  MORACLE_I32 = 5,
  MORACLE_I16 = 6,
  MORACLE_I8 = 7,
  MORACLE_U8 = 8,
  MORACLE_I4 = 9,
  MORACLE_BOOL = 10,
  MORACLE_F8_E4M3 = 11,
  MORACLE_F8_E5M2 = 12,
  MORACLE_F8_E8M0 = 13,
  MORACLE_F4_E2M1 = 14
};

/// A contiguous, row-major tensor in host memory. Null data: the tensor is absent.
typedef struct moracle_tensor {
  const void* data;
  const int64_t* shape;  ///< [rank]: sizes, the slowest first
  int32_t rank;          ///< 0 to 8
  moracle_dtype dtype;
} moracle_tensor;

/// Called between the steps of long work with bytes done and bytes in total, from a thread of the
/// library. Returning 0 stops the work with MORACLE_CANCELLED. It must not call the library.
typedef int32_t (*moracle_progress)(int64_t done, int64_t total, void* user);

// ---- checkpoints and layers ----

/// An opened and checked folder with config.json and safetensors files. No weight is read yet.
typedef struct moracle_checkpoint moracle_checkpoint;
/// Errors: no such folder; a missing or broken file; a quantization without a reader.
MORACLE_API moracle_status moracle_checkpoint_open(const char* folder, moracle_checkpoint** out,
                                                   moracle_error** error);
/// Writes the indices of the layers that hold experts, in order, to layers [most], and returns how
/// many the checkpoint has. `layers` may be null if `most` is 0.
MORACLE_API int64_t moracle_checkpoint_moe_layers(const moracle_checkpoint* checkpoint,
                                                  int64_t* layers, int64_t most);
MORACLE_API void moracle_checkpoint_free(moracle_checkpoint* checkpoint);

/// The experts of one layer: names, shapes and types are checked, values are not read.
typedef struct moracle_layer moracle_layer;
/// The experts of layer `index`. `quantization`: null, or an online scheme such as "fp8-per-block",
/// to which float weights are quantized while they are read. Errors: a layer without experts; a
/// missing, extra or wrongly typed tensor, by name; a scheme that the layer cannot have.
MORACLE_API moracle_status moracle_layer_from_checkpoint(const moracle_checkpoint* checkpoint,
                                                         int64_t index, const char* quantization,
                                                         moracle_layer** out,
                                                         moracle_error** error);

/// One matrix of all E experts, N rows, K columns, G groups of columns. In messages the tensors of
/// w13 are w13, w13_scale, w13_zp, w13_g_idx, w13_bias and w13_input_scale.
typedef struct moracle_stored_matrix {
  /// F32, F16, BF16 or F8_E4M3 [E, N, K]; fp4 codes U8 [E, N, K / 2], low nibble first; integer
  /// codes as `packing` says.
  moracle_tensor weight;
  /// Floats, or U8 exponents of power-of-two scales. Per tensor: [E]. Per channel: [E, N]. In
  /// groups: [E, N, G]. In blocks: [E, ceil(N / rows), ceil(K / cols)].
  moracle_tensor scales;
  moracle_tensor zero_points;   ///< as `packing` says
  moracle_tensor group_index;   ///< I32 [E, K]: the group of each column (act-order)
  moracle_tensor bias;          ///< floats [E, N]
  moracle_tensor input_scales;  ///< floats [E] or [1]: stored activation scales of a static scheme
} moracle_stored_matrix;

/// The experts of one layer, as tensors in host memory.
typedef struct moracle_experts {
  size_t size;                ///< sizeof(moracle_experts)
  moracle_stored_matrix w13;  ///< gate rows, then up rows [E, 2 I, H]; [E, I, H] without a gate
  moracle_stored_matrix w2;   ///< down [E, H, I]
  const char* scheme;         ///< "bf16", "int4-w4a16-g128", "fp8-w8a8-block128x128", ...
  int64_t top_k;              ///< experts per token, at least 1
  const char* activation;     ///< "silu" if null; "gelu", "swigluoai", ...
  float alpha, beta;          ///< read for "swigluoai" alone, which has no default
  float limit;                ///< 0: none; "swigluoai" and "swiglustep" need one
  /// "rows" if null: codes U8 [E, N, K b / 8] or I32 [E, N, ceil(K b / 32)], low bits first, I8
  /// [E, N, K] two's complement; zero points U8 [E, N b / 8, G] or I32 [E, ceil(N b / 32), G].
  /// "gptq", "gptq_v2", "awq": as these tools store them.
  const char* packing;
  int32_t interleaved;      ///< not 0: rows of gate and up alternate in w13
  int32_t weight_on_input;  ///< not 0: the weight multiplies the expert's input
  /// [num_experts]: the index in the tensors of each expert, or -1 if another rank holds it. Null:
  /// the tensors hold all experts. moracle_request has the same map.
  const int32_t* expert_map;
  int64_t num_experts;  ///< entries of expert_map; 0 without one
} moracle_experts;
/// Describes tensors in place. Their data must stay valid and unchanged until moracle_moe_make has
/// returned; shapes and texts are copied. Errors: a tensor that is missing, or has another dtype or
/// shape than the scheme and the packing need, by name.
MORACLE_API moracle_status moracle_layer_from_tensors(const moracle_experts* experts,
                                                      moracle_layer** out, moracle_error** error);

MORACLE_API int64_t moracle_layer_num_experts(const moracle_layer* layer);
MORACLE_API int64_t moracle_layer_hidden_size(const moracle_layer* layer);
MORACLE_API int64_t moracle_layer_intermediate_size(const moracle_layer* layer);
MORACLE_API int64_t moracle_layer_top_k(const moracle_layer* layer);
/// The scheme's name: "int4-w4a16-g128".
MORACLE_API const char* moracle_layer_scheme(const moracle_layer* layer);
/// "int4-w4a16-g128 · 128 experts, top-8, 2048 → 768", then the layer's special features.
MORACLE_API const char* moracle_layer_text(const moracle_layer* layer);
MORACLE_API void moracle_layer_free(moracle_layer* layer);

// ---- the router ----

/// Score functions of routers.
enum {
  MORACLE_SOFTMAX = 0,            ///< softmax over all experts, then top_k
  MORACLE_SIGMOID = 1,            ///< sigmoid of each expert's logit
  MORACLE_TOPK_THEN_SOFTMAX = 2,  ///< top_k of the logits, then softmax over these
  MORACLE_SPARSE_MIXER = 3,   ///< each choice: softmax over the logits near the largest one left
  MORACLE_SCORE_UNKNOWN = 4,  ///< the checkpoint's architecture is unknown
  MORACLE_SQRT_SOFTPLUS = 5   ///< √log(1 + exp(logit)) of each expert
};
/// How logits become experts and weights.
typedef struct moracle_routing {
  size_t size;              ///< sizeof(moracle_routing)
  int32_t score;            ///< MORACLE_SOFTMAX, ...
  int32_t renormalize;      ///< not 0: divide the top_k weights by their sum
  int64_t num_groups;       ///< equal groups of experts; 0: 1
  int64_t top_groups;       ///< top_k chooses only from this many best groups; 0: 1
  float scaling_factor;     ///< multiplies the weights after renormalization; 0: 1
  float jitter;             ///< sparse mixer alone
  int32_t correction_bias;  ///< not 0: a bias per expert affects the choice, not the weights
  int32_t expert_scales;    ///< not 0: each weight is multiplied by a number of its expert
  int32_t weight_on_input;  ///< not 0: the weight multiplies the expert's input
} moracle_routing;
/// The routing of a layer. `routing->size` must be set. Layers from tensors have MORACLE_SOFTMAX,
/// which affects no result of moracle_moe_apply.
MORACLE_API moracle_status moracle_layer_routing(const moracle_layer* layer,
                                                 moracle_routing* routing, moracle_error** error);
/// Sets the routing, before moracle_select: needed where the checkpoint's architecture is unknown.
MORACLE_API moracle_status moracle_layer_set_routing(moracle_layer* layer,
                                                     const moracle_routing* routing,
                                                     moracle_error** error);

// ---- the oracle ----

/// A machine as a value: its hardware and what this build has for it.
typedef struct moracle_machine moracle_machine;
/// null or "here": the hardware that this process can use. Otherwise a known machine, such as
/// "h200", which needs no such hardware. Errors: an unknown name, with the list of known ones.
MORACLE_API moracle_status moracle_machine_find(const char* name, moracle_machine** out,
                                                moracle_error** error);
MORACLE_API void moracle_machine_free(moracle_machine* machine);

/// What the caller wants of a layer.
typedef struct moracle_request {
  size_t size;               ///< sizeof(moracle_request)
  const char* backend;       ///< "auto" if null, or a backend's name, which then serves or fails
  const char* device;        ///< null: any; only backends of "cpu", "cuda[:n]" or "opencl[:n]"
  int64_t max_num_tokens;    ///< of one apply, sizes the workspace; 0: 512
  int32_t deterministic;     ///< not 0: the bits of a token's result depend only on that token
  int32_t bf16_activations;  ///< not 0: kernels may round float activations to bf16
  int64_t ep_size;           ///< ranks that share the experts; 0: 1
  int64_t ep_rank;           ///< this rank, below ep_size
  /// [num_experts of the layer]: this rank's index of each expert, or -1. Replaces ep_size and
  /// ep_rank. Null: consecutive experts of rank ep_rank. A layer from tensors of some experts needs
  /// the map of its moracle_experts.
  const int32_t* expert_map;
} moracle_request;

/// The choice of a backend, with every reason against the others.
typedef struct moracle_selection moracle_selection;
/// Reads no weight. `request` may be null: defaults. That no backend serves the layer is no error
/// here; moracle_moe_make then fails with all reasons. Errors: a request that makes no sense.
MORACLE_API moracle_status moracle_select(const moracle_layer* layer,
                                          const moracle_machine* machine,
                                          const moracle_request* request, moracle_selection** out,
                                          moracle_error** error);
/// The chosen backend: "cpu-amx". Null: no backend serves the layer.
MORACLE_API const char* moracle_selection_backend(const moracle_selection* selection);
/// The selection as text for users: with every reason (not 0), or in short. The caller frees *out
/// with moracle_text_free.
MORACLE_API moracle_status moracle_selection_explain(const moracle_selection* selection,
                                                     int32_t all_reasons, char** out,
                                                     moracle_error** error);
/// The selection as one JSON object: {"layer", "scheme", "chosen", "weight_bytes", "considered",
/// "plan"}, with the values of `moracle explain --json`. Free *out with moracle_text_free.
MORACLE_API moracle_status moracle_selection_json(const moracle_selection* selection, char** out,
                                                  moracle_error** error);
MORACLE_API void moracle_selection_free(moracle_selection* selection);
MORACLE_API void moracle_text_free(char* text);

// ---- devices ----

/// One part of a job: call it once for each index. No task waits for another.
typedef void (*moracle_task)(void* context, int32_t index);
/// How to open a device.
typedef struct moracle_device_options {
  size_t size;               ///< sizeof(moracle_device_options)
  int32_t threads;           ///< host threads with the calling one; 0: all CPUs the process may use
  int32_t pin;               ///< not 0: each thread but the calling one gets its own CPU
  const char* kernel_cache;  ///< OpenCL: folder for compiled kernels; null: none
  void* engine;              ///< passed to the functions below
  /// Both or none: every buffer of the device comes from these functions (CPU, CUDA). Memory at a
  /// multiple of 64 bytes, with any content; null: refused. Several threads may call them at once.
  void* (*allocate)(void* engine, size_t bytes);
  void (*free)(void* engine, void* data, size_t bytes);
  /// Calls task(context, 0) to task(context, count - 1), each once, on the engine's threads, and
  /// returns when all calls are done. The device then starts no threads. Null: it does.
  void (*run_tasks)(void* engine, int32_t count, moracle_task task, void* context);
} moracle_device_options;

/// Memory and an ordered queue of work: the CPU, or one GPU. Layers made on one handle share its
/// threads and its scratch memory.
typedef struct moracle_device moracle_device;
/// "cpu" if null; "cuda[:n]" and "opencl[:n]" in builds that have them. `options` may be null.
/// Errors: a device that this build or machine does not have, with the list of available ones.
MORACLE_API moracle_status moracle_device_open(const char* name,
                                               const moracle_device_options* options,
                                               moracle_device** out, moracle_error** error);
/// "cpu", "cuda:0" or "opencl:0".
MORACLE_API const char* moracle_device_name(const moracle_device* device);
/// The dtype of activations between kernels: MORACLE_F32 on a CPU. -1 for a null handle.
MORACLE_API moracle_dtype moracle_device_activation_dtype(const moracle_device* device);
/// Waits until all work on `stream` is done. A stream is a cudaStream_t or a cl_command_queue;
/// null: the device's own queue. Errors: those of kernels, such as the id of an expert that does
/// not exist. Each error is reported once.
MORACLE_API moracle_status moracle_device_synchronize(moracle_device* device, void* stream,
                                                      moracle_error** error);
/// Copies `bytes` from host memory to device memory or back, in stream order. Host memory must live
/// until the copy is done.
MORACLE_API moracle_status moracle_device_upload(moracle_device* device, void* to, const void* from,
                                                 size_t bytes, void* stream, moracle_error** error);
MORACLE_API moracle_status moracle_device_download(moracle_device* device, void* to,
                                                   const void* from, size_t bytes, void* stream,
                                                   moracle_error** error);
MORACLE_API void moracle_device_free(moracle_device* device);

/// Zeroed memory of a device, aligned for every kernel. CUDA programs may use their own memory.
typedef struct moracle_buffer moracle_buffer;
/// Errors: MORACLE_OUT_OF_MEMORY, with the required and the available bytes.
MORACLE_API moracle_status moracle_buffer_allocate(moracle_device* device, size_t bytes,
                                                   moracle_buffer** out, moracle_error** error);
/// The address on the device. On a CPU the host may use it.
MORACLE_API void* moracle_buffer_data(const moracle_buffer* buffer);
MORACLE_API void moracle_buffer_free(moracle_buffer* buffer);

// ---- the experts ----

/// The experts of one layer, converted for the selected backend.
typedef struct moracle_moe moracle_moe;
/// Reads and packs the weights, one expert at a time, and uses up `layer`, whose handle stays to be
/// freed. `progress` may be null. Errors: no backend serves the layer, with all reasons (the layer
/// then stays usable); a layer that is used up; a device of another kind than the backend's; a
/// weight that is not finite, with tensor and element; memory; MORACLE_CANCELLED.
MORACLE_API moracle_status moracle_moe_make(moracle_layer* layer,
                                            const moracle_selection* selection,
                                            moracle_device* device, moracle_progress progress,
                                            void* user, moracle_moe** out, moracle_error** error);
/// Packed weights in bytes.
MORACLE_API int64_t moracle_moe_weight_bytes(const moracle_moe* moe);
MORACLE_API void moracle_moe_free(moracle_moe* moe);

/// One run of the experts. Pointers are device memory (on a CPU: host memory), aligned to their
/// element size; kernels are fastest at 16 bytes.
typedef struct moracle_moe_call {
  size_t size;                 ///< sizeof(moracle_moe_call)
  int64_t num_tokens;          ///< at most the request's max_num_tokens; 0: nothing runs
  const void* hidden;          ///< [num_tokens, hidden_size]
  moracle_dtype hidden_dtype;  ///< MORACLE_F32, MORACLE_BF16 or MORACLE_F16
  moracle_dtype output_dtype;  ///< likewise
  void* output;                ///< [num_tokens, hidden_size]; must not overlap hidden
  int64_t hidden_stride;       ///< elements from row to row; 0: hidden_size
  int64_t output_stride;       ///< likewise
  const int32_t* topk_ids;     ///< [num_tokens, top_k]; -1 adds zero
  const float* topk_weights;   ///< [num_tokens, top_k]
  void* stream;                ///< see moracle_device_synchronize
} moracle_moe_call;
/// output[t] = sum over j of topk_weights[t, j] * expert(topk_ids[t, j])(hidden[t]), over the local
/// experts. Enqueues work and returns; on a CPU the work is done. Allocates nothing. Ids that no
/// expert has add zero, and moracle_device_synchronize reports them. Errors: wrong sizes or types;
/// more tokens than planned; a null or unaligned pointer.
MORACLE_API moracle_status moracle_moe_apply(moracle_moe* moe, const moracle_moe_call* call,
                                             moracle_error** error);

/// One run of a router.
typedef struct moracle_route_call {
  size_t size;                   ///< sizeof(moracle_route_call)
  int64_t num_tokens;            ///< 0: nothing runs
  int64_t num_experts;           ///< at least 1
  int64_t top_k;                 ///< at least 1
  void* logits;                  ///< [num_tokens, num_experts] in the device's activation dtype;
                                 ///< overwritten
  int64_t logits_stride;         ///< elements from row to row; 0: num_experts
  const float* correction_bias;  ///< [num_experts] if the routing has one, else null
  const float* expert_scales;    ///< likewise
  int32_t* topk_ids;             ///< [num_tokens, top_k], written; the largest score first
  float* topk_weights;           ///< [num_tokens, top_k], written
  void* stream;                  ///< see moracle_device_synchronize
} moracle_route_call;
/// Chooses top_k experts for each token and computes their weights. Pointers as in
/// moracle_moe_apply. Errors: a routing that is unknown or impossible for these numbers; a null or
/// unaligned pointer.
MORACLE_API moracle_status moracle_route(moracle_device* device, const moracle_routing* routing,
                                         const moracle_route_call* call, moracle_error** error);

#ifdef __cplusplus
}
#endif
