#include "kernels/opencl/device/opencl_order.h"

#include <utility>

namespace moracle::opencl {
namespace {

/// Owns an event.
class Event {
 public:
  Event(const Queue& queue, cl_event event) : queue_(&queue), event_(event) {}
  Event(Event&& other) noexcept
      : queue_(other.queue_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) static_cast<void>(queue_->cl->clReleaseEvent(event_));
  }
  const cl_event& get() const { return event_; }

  static Result<Event> after(const Queue& queue, cl_command_queue stream) {
    cl_event event = nullptr;
    MORACLE_OPENCL(queue.cl->clEnqueueMarkerWithWaitList(stream, 0, nullptr, &event));
    return Event(queue, event);
  }

 private:
  const Queue* queue_;
  cl_event event_;
};

class OpenClTimeline : public Timeline {
 public:
  OpenClTimeline(const Queue& queue, Stream stream) : queue_(queue), stream_(queue.of(stream)) {}

  Status mark() override {
    MORACLE_TRY(Event event, Event::after(queue_, stream_));
    marks_.push_back(std::move(event));
    return {};
  }

  Result<std::vector<double>> take() override {
    const std::vector<Event> marks = std::exchange(marks_, {});
    std::vector<double> us;
    cl_ulong before = 0;
    for (size_t i = 0; i < marks.size(); ++i) {
      cl_ulong end = 0;  // nanoseconds
      if (i == 0) MORACLE_OPENCL(queue_.cl->clWaitForEvents(1, &marks.back().get()));
      MORACLE_OPENCL(queue_.cl->clGetEventProfilingInfo(marks[i].get(), CL_PROFILING_COMMAND_END,
                                                        sizeof end, &end, nullptr));
      if (i > 0) us.push_back(1e-3 * static_cast<double>(end - before));
      before = end;
    }
    return us;
  }

 private:
  const Queue& queue_;  // owned by the device, which outlives its timelines
  const cl_command_queue stream_;
  std::vector<Event> marks_;
};

class OpenClStreamOrder final : public StreamOrder {
 public:
  explicit OpenClStreamOrder(const Queue& queue) : queue_(queue) {}

  Status begin(Stream stream) override {
    const cl_command_queue to = queue_.of(stream);
    if (last_ == nullptr || last_ == to) return {};
    if (last_ == queue_.own) record();
    MORACLE_CHECK(recorded_);
    return check(queue_.cl->clEnqueueBarrierWithWaitList(to, 1, &done_.front().get(), nullptr),
                 "clEnqueueBarrierWithWaitList");
  }
  // Record the end now: the caller may release its queue before another one begins.
  void end(Stream stream) override {
    last_ = queue_.of(stream);
    if (last_ != queue_.own) record();
  }

 private:
  void record() {
    done_.clear();
    Result<Event> event = Event::after(queue_, last_);
    recorded_ = event ? check(queue_.cl->clFlush(last_), "clFlush") : Status(event.error());
    if (event) done_.push_back(*std::move(event));
  }

  const Queue& queue_;  // owned by the device, which outlives its workspaces
  cl_command_queue last_ = nullptr;
  std::vector<Event> done_;  // at most one: after the last work
  Status recorded_;          // status of that event, which end() cannot return
};

}  // namespace

std::unique_ptr<Timeline> timeline(const Queue& queue, Stream stream) {
  return std::make_unique<OpenClTimeline>(queue, stream);
}

std::shared_ptr<StreamOrder> stream_order(const Queue& queue) {
  return std::make_shared<OpenClStreamOrder>(queue);
}

}  // namespace moracle::opencl
