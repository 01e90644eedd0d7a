#include "kernels/cuda/device/cuda_graph.h"

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_stream_order.h"

namespace moracle::cuda {
namespace {

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraphExec_t kernels, RecordedOrders orders, Device& device, const Queue& queue)
      : kernels_(kernels), orders_(std::move(orders)), device_(device), queue_(queue) {}
  ~CudaGraph() override { static_cast<void>(cudaGraphExecDestroy(kernels_)); }

  Status replay(Stream stream) override {
    const DeviceLock lock = device_.lock();
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    for (const auto& order : orders_.orders) MORACLE_CHECK(order->begin(stream));
    const Status launched = check(cudaGraphLaunch(kernels_, queue_.of(stream)), "cudaGraphLaunch");
    for (const auto& order : orders_.orders) order->end(stream);
    return launched;
  }

 private:
  cudaGraphExec_t kernels_;
  RecordedOrders orders_;  // orders of the workspaces that the kernels use
  Device& device_;         // outlives its graphs
  const Queue& queue_;     // owned by the device
};

}  // namespace

Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue, Device& device,
                                      const Queue& queue, Stream stream) {
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  cudaStream_t const on = queue.of(stream);
  MORACLE_CUDA(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
  RecordedOrders orders;
  const Status enqueued = orders.collect(enqueue);
  // Always end the capture, or the stream would stay in it.
  cudaGraph_t captured = nullptr;
  const Status ended = check(cudaStreamEndCapture(on, &captured), "cudaStreamEndCapture");
  cudaGraphExec_t kernels = nullptr;
  Status made = enqueued.ok() ? ended : enqueued;
  if (made) made = check(cudaGraphInstantiate(&kernels, captured, 0), "cudaGraphInstantiate");
  if (captured != nullptr) static_cast<void>(cudaGraphDestroy(captured));
  MORACLE_CHECK(made);
  return std::unique_ptr<Graph>(new CudaGraph(kernels, std::move(orders), device, queue));
}

}  // namespace moracle::cuda
