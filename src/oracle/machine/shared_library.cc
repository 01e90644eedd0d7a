#include "oracle/machine/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "base/text.h"

namespace moracle {

SharedLibrary::SharedLibrary(std::string name, const std::vector<std::string>& folders)
    : name_(std::move(name)), handle_(::dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* const message = ::dlerror();
  load_error_ = message != nullptr ? message : name_ + " does not load";
  for (const std::string& folder : folders) {
    handle_ = ::dlopen((folder + "/" + name_).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) continue;
    load_error_.clear();
    return;
  }
}

void* SharedLibrary::address(const char* symbol) {
  void* const found = handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
  if (found == nullptr && missing_.empty()) missing_ = str(name_, " has no ", symbol);
  return found;
}

}  // namespace moracle
