#include "oracle/machine/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "base/text.h"

namespace moracle {

SharedLibrary::SharedLibrary(std::string name, const std::vector<std::string>& folders)
    : name_(std::move(name)) {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  // One library of a name in a process: the loader gives it to all that need the name, so another
  // version would break them.
  handle_ = ::dlopen(name_.c_str(), kMode | RTLD_NOLOAD);
  for (const std::string& folder : folders) {
    if (handle_ != nullptr) return;
    handle_ = ::dlopen((folder + "/" + name_).c_str(), kMode);
  }
  if (handle_ == nullptr) handle_ = ::dlopen(name_.c_str(), kMode);
  if (handle_ != nullptr) return;
  const char* const message = ::dlerror();
  load_error_ = message != nullptr ? message : name_ + " does not load";
}

void* SharedLibrary::address(const char* symbol) {
  void* const found = handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
  if (found == nullptr && missing_.empty()) missing_ = str(name_, " has no ", symbol);
  return found;
}

}  // namespace moracle
