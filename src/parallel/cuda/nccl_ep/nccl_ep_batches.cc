#if defined(MORACLE_WITH_NCCL_EP)
#include "parallel/cuda/nccl_ep/nccl_ep_batches.h"

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"
#include "parallel/cuda/nccl_ep/nccl_ep_shape.h"
#include "parallel/cuda/nccl_ep/scatter_rows.h"

namespace moracle {
namespace {

// Seconds between the host's timeout and the kernel's.
constexpr double kAfterTimeout = 5;

// nccl_ep 0.2 throws through its C interface where CUDA fails.
ncclResult_t guarded(const std::function<ncclResult_t()>& call) {
  try {
    return call();
  } catch (...) {
    return ncclUnhandledCudaError;
  }
}

// Only the first calls compile: their errors look like any other of the library.
Status explain_ep(Status done) {
  if (done || done.error().need.rfind("ncclEp", 0) != 0) return done;
  Error error = done.error();
  error.place = ep_refusal("", "").place;
  error.fact +=
      ". nccl_ep compiles kernels at first use, and its messages are on standard error. It needs "
      "nvcc in CUDA_HOME or PATH, the headers in NCCL_HOME and NCCL_EP_HOME, and a writable folder "
      "NCCL_EP_JIT_CACHE_DIR; or all kernels in that folder";
  return error;
}

}  // namespace

NcclEpBatches::NcclEpBatches(NcclExchange& exchange) : exchange_(exchange), api_(*nccl::ep_api()) {}

NcclEpBatches::~NcclEpBatches() {
  // Destructor: errors are dropped; synchronize() has reported them. The kernels must be done.
  static_cast<void>(exchange_.device().synchronize({}).ok());
  // After an error a kernel may wait until its timeout, and then nothing of this GPU can be freed.
  if (!exchange_.communicator().watch()->status()) return;
  const auto here = cuda::CurrentDevice::enter(exchange_.device().queue().index);
  // Handles use their group, and groups the communicator.
  nccl::end_in_time([&api = api_, all = std::move(prepared_)] {
    for (const auto& [shape, made] : all) {
      static_cast<void>(guarded([&] { return api.ncclEpHandleDestroy(made->handle); }));
      static_cast<void>(guarded([&] { return api.ncclEpGroupDestroy(made->group); }));
    }
  });
}

Result<std::shared_ptr<nccl::EpHandle>> NcclEpBatches::find(const BatchShape& shape) const {
  const auto at = prepared_.find(shape);
  if (at != prepared_.end()) return at->second;
  return ep_refusal("a prepared layer", "these sizes were not prepared");
}

Status NcclEpBatches::enqueue(const char* name, size_t kind, Stream stream,
                              std::function<ncclResult_t(cudaStream_t)> call) {
  CudaDevice& gpu = exchange_.device();
  const Turn turn = gpu.turn();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(gpu.queue().index));
  return explain_ep(exchange_.communicator().enqueue(
      name, kind, [call = std::move(call), on = gpu.queue().of(stream)] {
        return guarded([&] { return call(on); });
      }));
}

Status NcclEpBatches::prepare(const BatchShape& shape) {
  if (prepared_.contains(shape)) return {};
  MORACLE_CHECK(check_ep_shape(shape));
  auto config = nccl::ep_struct<ncclEpGroupConfig_t>();
  config.version = NCCL_EP_API_VERSION;
  config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
  config.num_experts = static_cast<unsigned>(shape.num_experts);
  config.max_dispatch_tokens_per_rank = static_cast<unsigned>(shape.max_tokens);
  config.max_token_bytes = static_cast<unsigned>(
      std::max(shape.hidden_size * bits(shape.result) / 8,
               shape.cols * bits(shape.row) / 8 + shape.num_scales * int64_t{4}));
  // The host names a rank that does not come. Until its error is out, the kernel must wait: it
  // traps then, and the process cannot use this GPU any more. (A mask instead of the trap takes 3
  // us longer per layer.)
  config.timeout_ns =
      static_cast<uint64_t>((exchange_.group()->options().timeout_seconds + kAfterTimeout) * 1e9);
  const auto made = std::make_shared<nccl::EpHandle>();
  made->kind = prepared_.size();
  const auto top_k = static_cast<int>(shape.top_k);
  MORACLE_CHECK(enqueue(
      "ncclEpInitHandle", made->kind, {},
      [&api = api_, made, config, top_k, comm = exchange_.communicator().get()](cudaStream_t) {
        const ncclResult_t group = api.ncclEpCreateGroup(&made->group, comm, &config);
        if (group != ncclSuccess) return group;
        return api.ncclEpInitHandle(&made->handle, made->group, NCCL_EP_LAYOUT_EXPERT_MAJOR,
                                    nullptr, top_k, nullptr);
      }));
  prepared_.emplace(shape, made);
  return {};
}

Status NcclEpBatches::dispatch(const BatchShape& shape, const Rows& tokens, TopkIds topk_ids,
                               const Rows& batch, int32_t* counts, Stream stream) {
  MORACLE_TRY(const std::shared_ptr<nccl::EpHandle> at, find(shape));
  const int64_t ranks = exchange_.group()->size(), count = tokens.values.rows;
  if (count > shape.max_tokens)
    return ep_refusal(str("at most ", shape.max_tokens, " tokens of a rank in a call"),
                      str("there are ", count));
  const int64_t experts = shape.num_local(ranks), rows = shape.expert_rows(ranks);
  auto inputs = nccl::ep_struct<ncclEpDispatchInputs_t>();
  auto outputs = nccl::ep_struct<ncclEpDispatchOutputs_t>();
  auto layout = nccl::ep_struct<ncclEpLayoutInfo_t>();
  auto config = nccl::ep_struct<ncclEpDispatchConfig_t>();
  const ncclDataType_t type = nccl::ep_type(shape.row);
  inputs.tokens = at->tokens.set(type, tokens.values.data, {count, shape.cols});
  outputs.tokens = at->batch.set(type, batch.values.data, {experts, rows, shape.cols});
  if (shape.num_scales > 0) {
    config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
    inputs.scales = at->scales.set(ncclFloat32, tokens.scales, {count, shape.num_scales});
    outputs.scales =
        at->batch_scales.set(ncclFloat32, batch.scales, {experts, rows, shape.num_scales});
  }
  layout.expert_counters = at->counts.set(ncclInt32, counts, {experts});
  const ncclEpTensor_t* const ids = at->ids.set(ncclInt32, topk_ids.data, {count, shape.top_k});
  return enqueue("ncclEpDispatch", at->kind, stream, [=, &api = api_](cudaStream_t on) {
    const ncclResult_t updated = api.ncclEpUpdateHandle(at->handle, ids, nullptr, on);
    if (updated != ncclSuccess) return updated;
    return api.ncclEpDispatch(at->handle, &inputs, &outputs, &layout, &config, on);
  });
}

Status NcclEpBatches::combine(const BatchShape& shape, const ExpertResults& results, TopkIds,
                              TopkWeights topk_weights, const Matrix& batch, const Matrix& output,
                              Stream stream) {
  MORACLE_TRY(const std::shared_ptr<nccl::EpHandle> at, find(shape));
  const int64_t ranks = exchange_.group()->size();
  if (results.rows.rows > 0) {
    CudaDevice& gpu = exchange_.device();
    const Turn turn = gpu.turn();
    MORACLE_CHECK(cuda::scatter_rows(gpu.queue(), results.rows, results.row_slot, results.count,
                                     batch, stream));
  }
  auto inputs = nccl::ep_struct<ncclEpCombineInputs_t>();
  auto outputs = nccl::ep_struct<ncclEpCombineOutputs_t>();
  const ncclDataType_t type = nccl::ep_type(shape.result);
  inputs.tokens = at->results.set(
      type, batch.data, {shape.num_local(ranks), shape.expert_rows(ranks), shape.hidden_size});
  outputs.tokens = at->output.set(type, output.data, {output.rows, shape.hidden_size});
  outputs.topk_weights =
      at->weights.set(ncclFloat32, topk_weights.data, {output.rows, shape.top_k});
  return enqueue("ncclEpCombine", at->kind, stream, [=, &api = api_](cudaStream_t on) {
    return api.ncclEpCombine(at->handle, &inputs, &outputs, nullptr, on);
  });
}

}  // namespace moracle
#endif
