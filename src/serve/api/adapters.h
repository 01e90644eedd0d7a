// LoRA adapters that requests name. They can be loaded and unloaded while the server runs.
#pragma once

#include <mutex>
#include <optional>

#include "serve/engine/engine.h"

namespace moracle::serve {

/// Thread-safe.
class Adapters {
 public:
  /// Requests may load adapters from inside `folder` only. Empty: requests may load none.
  explicit Adapters(std::string folder = {}) : folder_(std::move(folder)) {}

  /// Registers an adapter of the loaded model. Call in the order of ModelOptions::read_adapters.
  /// Errors: a name that is in use, too long, or not printable.
  Status add(const std::string& name, std::shared_ptr<const LoraAdapter> adapter);
  /// The adapter number for a Job. Numbers are never reused.
  std::optional<int32_t> find(const std::string& name) const;
  std::vector<std::string> names() const;
  /// True if requests may load adapters.
  bool may_load() const { return !folder_.empty(); }

  /// Loads a second copy of the model with one more adapter and swaps it in between two steps. Both
  /// copies are in memory until then. The other adapters are not read again. `path` is relative to
  /// the adapter folder. `done` gets the errors of load_again; the old model then stays in use.
  void load(const std::string& name, const std::string& path, const ModelOptions& options,
            const std::string& checkpoint, Engine& engine, std::function<void(const Status&)> done);
  /// Unloads an adapter, as Engine::retire_adapter. Errors: an unknown name.
  Status unload(const std::string& name, Engine& engine);

 private:
  struct Loaded {
    int32_t id;
    std::shared_ptr<const LoraAdapter> adapter;
  };
  // Symbolic links are resolved.
  struct Place {
    std::string root, folder;
  };
  Result<Place> place_of(const std::string& path) const;
  Status check_name(const std::string& name) const;

  const std::string folder_;
  mutable std::mutex mutex_;
  std::map<std::string, Loaded> loaded_;
  int32_t next_id_ = 0;
};

}  // namespace moracle::serve
