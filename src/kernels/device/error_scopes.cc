#include "kernels/device/error_scopes.h"

#include <utility>

namespace moracle {

int ErrorScopes::add(std::string name) {
  const std::lock_guard lock(mutex_);
  int scope = static_cast<int>(names_.size());
  if (!free_.empty()) {
    scope = free_.back();
    free_.pop_back();
  } else if (scope < kMost) {
    names_.emplace_back();
  } else {
    return 0;
  }
  names_[scope] = std::move(name);
  return scope;
}

void ErrorScopes::remove(int scope) {
  if (scope == 0) return;
  const std::lock_guard lock(mutex_);
  removed_.push_back(scope);
}

void ErrorScopes::collected() {
  const std::lock_guard lock(mutex_);
  free_.insert(free_.end(), removed_.begin(), removed_.end());
  removed_.clear();
}

std::string ErrorScopes::name(int scope) const {
  const std::lock_guard lock(mutex_);
  return names_[scope];
}

int ErrorScopes::end() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(names_.size());
}

}  // namespace moracle
