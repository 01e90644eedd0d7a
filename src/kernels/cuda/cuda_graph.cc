#include "kernels/cuda/cuda_graph.h"

#include "kernels/cuda/cuda_check.h"

namespace moracle::cuda {
namespace {

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraphExec_t kernels, const Queue& queue) : kernels_(kernels), queue_(queue) {}
  ~CudaGraph() override { static_cast<void>(cudaGraphExecDestroy(kernels_)); }

  Status replay(Stream stream) override {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    MORACLE_CUDA(cudaGraphLaunch(kernels_, queue_.of(stream)));
    return {};
  }

 private:
  cudaGraphExec_t kernels_;
  const Queue& queue_;  // the device's, which outlives its graphs
};

}  // namespace

Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue, const Queue& queue,
                                      Stream stream) {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  cudaStream_t const on = queue.of(stream);
  MORACLE_CUDA(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
  const Status enqueued = enqueue();
  // Ends the capture in any case: else the stream would stay in it.
  cudaGraph_t captured = nullptr;
  const Status ended = check(cudaStreamEndCapture(on, &captured), "cudaStreamEndCapture");
  cudaGraphExec_t kernels = nullptr;
  Status made = enqueued.ok() ? ended : enqueued;
  if (made) made = check(cudaGraphInstantiate(&kernels, captured, 0), "cudaGraphInstantiate");
  if (captured != nullptr) static_cast<void>(cudaGraphDestroy(captured));
  MORACLE_CHECK(made);
  return std::unique_ptr<Graph>(new CudaGraph(kernels, queue));
}

}  // namespace moracle::cuda
