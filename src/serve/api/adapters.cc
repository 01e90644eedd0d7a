#include "serve/api/adapters.h"

#include <filesystem>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

constexpr size_t kLongestName = 256;

Error wrong_adapter(const char* field, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", field, std::move(need), std::move(fact)};
}

}  // namespace

// Locks the mutex.
Status Adapters::check_name(const std::string& name) const {
  if (name.empty() || name.size() > kLongestName || printable(name) != name) {
    return wrong_adapter("lora_name", str("a printable name of 1 to ", kLongestName, " bytes"),
                         str("it is ", quote(name)));
  }
  if (!find(name)) return {};
  return wrong_adapter("lora_name", "a name that is not in use", "it is " + quote(name));
}

Status Adapters::add(const std::string& name, std::shared_ptr<const LoraAdapter> adapter) {
  MORACLE_CHECK(check_name(name));
  const std::lock_guard lock(mutex_);
  loaded_.emplace(name, Loaded{next_id_++, std::move(adapter)});
  return {};
}

std::optional<int32_t> Adapters::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(name);
  return found == loaded_.end() ? std::optional<int32_t>() : found->second.id;
}

std::vector<std::string> Adapters::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, loaded] : loaded_) names.push_back(name);
  return names;
}

Result<Adapters::Place> Adapters::place_of(const std::string& path) const {
  namespace fs = std::filesystem;
  if (folder_.empty())
    return wrong_adapter("lora_path", "a server with --adapter-folder", "this one has none");
  if (path.find('\0') != std::string::npos || path.empty())
    return wrong_adapter("lora_path", "the name of a folder or file",
                         "it is empty or has a NUL byte");
  std::error_code failure;
  const fs::path root = fs::canonical(folder_, failure);
  const fs::path asked = failure ? fs::path() : fs::canonical(root / path, failure);
  const auto [end, unused] = std::mismatch(root.begin(), root.end(), asked.begin(), asked.end());
  // Reject all other paths with one message: a client must not learn which files exist.
  if (failure || end != root.end() || asked == root)
    return wrong_adapter("lora_path", "an adapter inside --adapter-folder",
                         quote(path) + " is none");
  return Place{root.string(), asked.string()};
}

void Adapters::load(const std::string& name, const std::string& path, const ModelOptions& options,
                    const std::string& checkpoint, Engine& engine,
                    std::function<void(const Status&)> done) {
  if (const Status good = check_name(name); !good) return done(good);
  const Result<Place> place = place_of(path);
  if (!place) return done(place.error());
  const auto work = [this, name, place = *place, options, checkpoint](
                        Leader& model, AdapterSlots& slots) -> Status {
    MORACLE_CHECK(check_name(name));  // a concurrent load may have taken the name
    ModelOptions with = options;
    with.read_adapters.clear();
    AdapterSlots fresh_slots;
    AdapterChange change{.folder = place.folder, .inside = place.root};
    {
      const std::lock_guard lock(mutex_);
      change.id = next_id_++;
      for (const auto& [each, loaded] : loaded_) {
        fresh_slots[loaded.id] = static_cast<int32_t>(with.read_adapters.size());
        change.kept.push_back(loaded.id);
        with.read_adapters.push_back(loaded.adapter);
      }
    }
    const auto id = static_cast<int32_t>(change.id);
    fresh_slots[id] = static_cast<int32_t>(with.read_adapters.size());
    MORACLE_TRY(auto adapter, model.load_again(checkpoint, with, change));
    slots = std::move(fresh_slots);
    // Only add: a concurrent unload may have removed another name.
    const std::lock_guard lock(mutex_);
    loaded_.emplace(name, Loaded{id, std::move(adapter)});
    return {};
  };
  engine.change(work, std::move(done));
}

Status Adapters::unload(const std::string& name, Engine& engine) {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(name);
  if (found == loaded_.end())
    return wrong_adapter("lora_name", "an adapter", quote(name) + " is unknown");
  engine.retire_adapter(found->second.id);
  loaded_.erase(found);
  return {};
}

}  // namespace moracle::serve
