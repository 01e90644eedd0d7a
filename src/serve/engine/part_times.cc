#include "serve/engine/part_times.h"

#include <set>

#include "base/text.h"
#include "models/decoder/model_state.h"

namespace moracle::serve {

void PartTimes::watch(Model& model) {
  labels_.clear();
  if (!model.device().host_visible() || model.device().platform() != Platform::kCpu) return;
  model_ = &model;
  ModelAccess::state(model).on_part = [this](std::string_view part) { end(part); };
}

void PartTimes::unwatch(Model& model) {
  ModelAccess::state(model).on_part = {};
}

void PartTimes::end(std::string_view part) {
  if (!model_) return;
  const Clock::time_point now = Clock::now();
  seconds_[labels_of(part)] += std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

// Parts without a choice of backends, such as norms, run on the device itself.
const std::string& PartTimes::labels_of(std::string_view part) {
  const auto known = labels_.find(part);
  if (known != labels_.end()) return known->second;
  const std::string_view chosen = part == "attention linears" ? "attention" : part;
  std::set<std::string> names;
  for (const Choice& choice : model_->choices()) {
    if (part != "attention" && choice.part.starts_with(chosen))
      names.emplace(choice.selection.plan->backend->name);
  }
  if (names.empty()) names.emplace("cpu");
  std::string label = str("part=\"", part, "\",backend=\"");
  for (const std::string& name : names) label += (label.ends_with('"') ? "" : "+") + name;
  return labels_.emplace(part, label + "\"").first->second;
}

}  // namespace moracle::serve
