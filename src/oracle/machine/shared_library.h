// A library that is loaded at run time. It is never closed: drivers and communication libraries
// keep threads and state.
#pragma once
#include <string>
#include <type_traits>
#include <vector>

namespace moracle {

class SharedLibrary {
 public:
  // The process's own library of that name, else one in `folders`, else where the loader searches.
  explicit SharedLibrary(std::string name, const std::vector<std::string>& folders = {});

  // Empty, or the loader's message.
  const std::string& load_error() const { return load_error_; }

  // Sets `function` to the symbol's address. A missing symbol sets nullptr.
  template <class Function>
  void find(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(address(symbol));
  }

  // Empty, or the first symbol that `find` missed, as a fact for an error.
  const std::string& missing() const { return missing_; }

 private:
  void* address(const char* symbol);

  std::string name_;
  void* handle_ = nullptr;
  std::string load_error_;
  std::string missing_;
};

}  // namespace moracle
