// Names of the layers whose calls enqueue work. Kernels of each layer report errors in cells of
// their own, so that an error that synchronize() returns names the layer.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace moracle {

class ErrorScopes {
 public:
  /// Scopes that one device keeps apart. Scope 0 has no name: work outside of layers.
  static constexpr int kMost = 1024;

  /// Returns the scope of a layer; 0 if all are taken: its errors then have no name.
  int add(std::string name);
  /// Ends a layer. Another layer gets its scope only after collected(), so no error of this layer
  /// names that one.
  void remove(int scope);
  /// The errors of all scopes were read.
  void collected();
  std::string name(int scope) const;
  /// All scopes of layers are below this number.
  int end() const;

  /// The scope of work that is enqueued from now on. Callers hold the device's turn.
  int current() const { return current_; }
  /// Returns the scope before.
  int enter(int scope) {
    const int before = current_;
    current_ = scope;
    return before;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> names_{std::string()};
  std::vector<int> removed_, free_;
  int current_ = 0;
};

}  // namespace moracle
