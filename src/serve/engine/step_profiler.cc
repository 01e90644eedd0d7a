#include "serve/engine/step_profiler.h"

#include <set>

#include "base/text.h"
#include "models/decoder/model_state.h"

namespace moracle::serve {

void StepProfiler::watch(Model& model) {
  labels_.clear();
  timeline_.reset();
  model_ = &model;
  is_cpu_ = model.device().platform() == Platform::kCpu;
  if (is_cpu_)
    ModelAccess::state(model).observer.on_part = [this](StepPart part) { end(name(part)); };
}

void StepProfiler::unwatch(Model& model) {
  ModelAccess::state(model).observer.on_part = {};
}

void StepProfiler::end(std::string_view part) {
  const Clock::time_point now = Clock::now();
  seconds_[labels_of(part)] += std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

void StepProfiler::begin_step() {
  // Sample in the middle of each period: a server's first steps are not typical.
  is_sampled_ = !is_cpu_ && ++num_steps_ % kSampled == kSampled / 2;
  if (!is_sampled_) return;
  if (!timeline_) {
    auto timeline = model_->device().timeline();
    if (timeline) timeline_ = *std::move(timeline);
  }
  marked_.clear();
  is_sampled_ = timeline_ && timeline_->mark();
  if (is_sampled_)
    ModelAccess::state(*model_).observer.on_part = [this](StepPart part) { mark(name(part)); };
}

void StepProfiler::mark(std::string_view part) {
  if (timeline_->mark()) marked_.emplace_back(part);
}

void StepProfiler::end_on_device(std::string_view part) {
  if (is_cpu_) return end(part);
  if (is_sampled_) mark(part);
  start();  // exclude the wait for the device
}

void StepProfiler::end_step() {
  if (!std::exchange(is_sampled_, false)) return;
  ModelAccess::state(*model_).observer.on_part = {};
  const auto us = timeline_->take();
  if (!us || us->size() != marked_.size()) return;  // the next step reports the error
  for (size_t i = 0; i < marked_.size(); ++i)
    seconds_[labels_of(marked_[i])] += (*us)[i] * 1e-6 * kSampled;
}

// Parts that no backend serves, such as norms, count for the device. Scheduling, enqueueing,
// answers and grammars count for the host.
const std::string& StepProfiler::labels_of(std::string_view part) {
  const auto known = labels_.find(part);
  if (known != labels_.end()) return known->second;
  const std::string_view chosen = part == "attention linears" ? "attention" : part;
  std::set<std::string> names;
  for (const Choice& choice : model_->choices()) {
    if (part != "attention" && choice.part.starts_with(chosen))
      names.emplace(name(*choice.selection.plan->backend));
  }
  if (part == "scheduling" || part == "enqueueing" || part == "answers" || part == "grammars")
    names = {"cpu"};
  if (names.empty()) {
    const std::string device = model_->device().name();  // "cuda:0"
    names.insert(device.substr(0, device.find(':')));
  }
  std::string label = str("part=\"", part, "\",backend=\"");
  for (const std::string& name : names) label += (label.ends_with('"') ? "" : "+") + name;
  return labels_.emplace(part, label + "\"").first->second;
}

}  // namespace moracle::serve
