#include "models/loader.h"

#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "models/modules.h"

namespace moracle {

Result<const Selection*> Loader::next(const std::string& module) {
  const bool there = at_ < modules_.size();
  if (there && modules_[at_].selection.request.layer.name == module)
    return &modules_[at_++].selection;
  return Error{ErrorKind::kInvalidArgument, "", module, "to be loaded in the order of the plan",
               there
                   ? "the next module of the plan is " + modules_[at_].selection.request.layer.name
                   : "the plan has no more modules"};
}

class Loader::OwnReads {
 public:
  OwnReads(ReadRecord* record, bool own) : record_(own ? record : nullptr) {
    if (record_ != nullptr) record_->own = true;
  }
  ~OwnReads() {
    if (record_ != nullptr) record_->own = false;
  }
  OwnReads(const OwnReads&) = delete;
  OwnReads& operator=(const OwnReads&) = delete;

 private:
  ReadRecord* record_;
};

bool Loader::is_own(const std::string& part) const {
  return part == "experts" || (divided_ && part != "router" && part != "latent" &&
                               part != "output" && part != "shared expert gate");
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

template <class Module, class Described>
Status Loader::set_aside(Module& to, Described&& from) {
  MORACLE_TRY(PackedWeights packed, to.pack(std::forward<Described>(from), step()));
  // std::function must be copyable, so the packed weights are held by a shared_ptr.
  auto held = std::make_shared<PackedWeights>(std::move(packed));
  aside_.push_back([&to, held] { return to.swap(std::move(*held)); });
  return {};
}

Status Loader::load(std::optional<AdaptedLinear>& to, DescribedMatrix&& from) {
  const bool is_share = std::exchange(next_is_own_, false);
  if (reload_) {
    // A reload has no module places: with tensor parallelism only tables and vectors are compared.
    const OwnReads own(record_, divided_ || is_share);
    return set_aside(*to, std::move(from));
  }
  MORACLE_TRY(const Selection* selection, next(module_name(from)));
  const OwnReads own(record_, is_share || is_own(modules_[at_ - 1].part));
  const std::vector<AdaptedRows> adapted = adapted_rows(from, adapters_);
  MORACLE_TRY(Linear linear, Linear::make(std::move(from), *selection, workspace_, step()));
  to.emplace(std::move(linear));
  MORACLE_CHECK(to->set_adapters(adapted, adapters_, lora_ids_, device()));
  weight_bytes_ += to->weight_bytes();
  return {};
}

Status Loader::load(std::optional<FusedMoe>& to, DescribedWeights&& from) {
  if (reload_) {
    const OwnReads own(record_, divided_ || !to->plan().experts.is_identity());
    return set_aside(*to, std::move(from));
  }
  MORACLE_TRY(const Selection* selection, next(module_name(from)));
  const ModuleChoice& choice = modules_[at_ - 1];
  std::vector<LoraWeights> adapters;
  for (const auto& adapter : adapters_)
    adapters.push_back(adapter_of(*adapter, choice.part, choice.layer, from));
  const OwnReads own(record_, is_own(choice.part));
  MORACLE_TRY(to, FusedMoe::make(std::move(from), *selection, workspace_, step()));
  weight_bytes_ += to->weight_bytes() + to->plan().adapter_bytes;
  for (size_t i = 0; to->plan().lora_rank > 0 && i < adapters.size(); ++i)
    MORACLE_CHECK(to->set_adapter(static_cast<int32_t>(i), adapters[i]));
  return {};
}

bool Loader::next_is_placed() const {
  return at_ < modules_.size() && modules_[at_].part == kHostExperts;
}

Status Loader::load(std::optional<PlacedMoe>& to, DescribedWeights&& from) {
  const OwnReads own(record_, true);
  if (reload_) return set_aside(*to, std::move(from));
  const std::string module = module_name(from);
  MORACLE_TRY(const Selection* on_host, next(module));
  const Selection* streamed = nullptr;
  if (at_ < modules_.size() && modules_[at_].part == kStreamedExperts) {
    MORACLE_TRY(streamed, next(module));
  }
  std::vector<Selection> slots(1);
  while (at_ < modules_.size() && is_on_other(modules_[at_])) {
    MORACLE_TRY(const Selection* other, next(module));
    slots.push_back(*other);
  }
  MORACLE_TRY(const Selection* first, next(module));
  slots.front() = *first;
  const ModuleChoice& choice = modules_[at_ - 1];
  std::vector<LoraWeights> adapters;
  for (const auto& adapter : adapters_)
    adapters.push_back(adapter_of(*adapter, choice.part, choice.layer, from));
  if (reads_files(*on_host)) {
    MORACLE_TRY(to, PlacedMoe::make_from_files(std::move(from), *on_host, slots, devices_,
                                               deterministic_, step()));
  } else {
    MORACLE_TRY(to, PlacedMoe::make(std::move(from), *on_host, slots, devices_, step()));
  }
  if (streamed != nullptr) MORACLE_CHECK(to->stream(*streamed));
  weight_bytes_ += to->host_plan().weight_bytes + to->host_plan().adapter_bytes;
  for (const Selection& one : slots)
    weight_bytes_ += one.plan->weight_bytes + one.plan->adapter_bytes;
  for (size_t i = 0; to->host_plan().lora_rank > 0 && i < adapters.size(); ++i)
    MORACLE_CHECK(to->set_adapter(static_cast<int32_t>(i), adapters[i]));
  return {};
}

Status Loader::load(Buffer& to, const std::vector<float>& from) {
  return load_values(to, from);
}
Status Loader::load(Buffer& to, const std::vector<int32_t>& from) {
  return load_values(to, from);
}
Status Loader::load(Buffer& to, const std::vector<uint64_t>& from) {
  return load_values(to, from);
}

template <class T>
Status Loader::load_values(Buffer& to, const std::vector<T>& from) {
  const size_t bytes = from.size() * sizeof(T);
  if (!reload_) {
    MORACLE_TRY(to, device().allocate(bytes));
    return device().upload(to.data(), from.data(), bytes);
  }
  if (to.bytes() != bytes) {
    return Error{ErrorKind::kInvalidArgument, "", "reload",
                 str("a vector of ", to.bytes() / sizeof(T), " values, as in the loaded model"),
                 str("it has ", from.size())};
  }
  aside_.push_back([this, &to, from]() -> Status {
    MORACLE_CHECK(device().upload(to.data(), from.data(), to.bytes()));
    return device().synchronize();  // before the values are destroyed
  });
  return {};
}

Status Loader::done() {
  if (!progress_ || progress_(total_, total_)) return {};
  return Error{ErrorKind::kCancelled, "", "loading", "", "stopped on request"};
}

Status Loader::commit() && {
  MORACLE_CHECK(done());
  for (const auto& put : aside_) MORACLE_CHECK(put());
  return {};
}

Result<std::vector<ModuleChoice>> Loader::finish() && {
  if (at_ != modules_.size()) {
    return Error{ErrorKind::kInvalidArgument, "", modules_[at_].selection.request.layer.name,
                 "to be loaded, because the plan has it", "it was not loaded"};
  }
  MORACLE_CHECK(done());
  return std::move(modules_);
}

}  // namespace moracle
