#include "models/decoder/recorded_steps.h"

#include "base/try.h"

namespace moracle {

Status RecordedSteps::replay(std::unique_ptr<Graph>& graph, Device& device, Stream stream,
                             const std::function<Status()>& enqueue) {
  if (!graph) {
    MORACLE_TRY(graph, devices ? devices->record(enqueue, stream) : device.record(enqueue, stream));
    if (!graph) return enqueue();
  }
  ++replays_;
  return graph->replay(stream);
}

}  // namespace moracle
