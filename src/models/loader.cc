#include "models/loader.h"

#include "base/try.h"
#include "models/modules.h"

namespace moracle {

Result<const Selection*> Loader::next(const std::string& module) {
  const bool there = at_ < modules_.size();
  if (there && modules_[at_].selection.request.layer.name == module)
    return &modules_[at_++].selection;
  return Error{ErrorKind::kInvalidArgument, "", module, "to be loaded in the order of the choices",
               there ? "the next choice is for " + modules_[at_].selection.request.layer.name
                     : "there are no more"};
}

Progress Loader::step() {
  counted_ = 0;
  if (!progress_) return {};
  return [this](int64_t done, int64_t) {
    done_ += done - counted_;
    counted_ = done;
    return progress_(done_, total_);
  };
}

Result<Linear> Loader::linear(DescribedMatrix&& weights) {
  MORACLE_TRY(const Selection* selection, next(module_name(weights)));
  MORACLE_TRY(Linear made, Linear::make(std::move(weights), *selection, workspace_, step()));
  weight_bytes_ += made.weight_bytes();
  return made;
}

Result<FusedMoe> Loader::experts(DescribedWeights&& weights) {
  MORACLE_TRY(const Selection* selection, next(module_name(weights)));
  const std::optional<int64_t> layer = modules_[at_ - 1].layer;
  MORACLE_TRY(FusedMoe made, FusedMoe::make(std::move(weights), *selection, workspace_, step()));
  weight_bytes_ += made.weight_bytes() + made.plan().adapter_bytes;
  for (size_t i = 0; made.plan().lora_rank > 0 && i < adapters_.size(); ++i) {
    const auto own = adapters_[i].layers.find(*layer);
    if (own == adapters_[i].layers.end()) continue;
    MORACLE_CHECK(made.set_adapter(static_cast<int32_t>(i), own->second));
  }
  return made;
}

Result<Buffer> Loader::upload(const std::vector<float>& values) {
  MORACLE_TRY(Buffer buffer, device().allocate(values.size() * sizeof(float)));
  MORACLE_CHECK(device().upload(buffer.data(), values.data(), values.size() * sizeof(float)));
  return buffer;
}

Result<std::vector<ModuleChoice>> Loader::finish() && {
  if (at_ != modules_.size()) {
    return Error{ErrorKind::kInvalidArgument, "", modules_[at_].selection.request.layer.name,
                 "to be loaded, since it was chosen for", "nothing asked for it"};
  }
  if (progress_ && !progress_(total_, total_))
    return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
  return std::move(modules_);
}

}  // namespace moracle
