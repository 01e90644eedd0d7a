#include "oracle/machine/nvidia_packages.h"

#include <dlfcn.h>

#include <algorithm>
#include <system_error>

namespace moracle {

namespace fs = std::filesystem;

std::vector<std::string> nvidia_package_folders(const fs::path& file) {
  std::vector<std::string> folders;
  std::error_code error;
  const fs::path package = file.parent_path();
  for (const fs::path& site : {package.parent_path(), package.parent_path().parent_path()}) {
    for (fs::directory_iterator it(site / "nvidia", error), end; !error && it != end;
         it.increment(error)) {
      std::error_code missing;
      if (fs::is_directory(it->path() / "lib", missing)) folders.push_back(it->path() / "lib");
    }
    error.clear();
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::vector<std::string> nvidia_package_folders() {
  // The loader gives a program's argv[0] for its name, which may be no path.
  static const char kHere = 0;
  Dl_info info{};
  fs::path file = ::dladdr(&kHere, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
  if (!file.is_absolute()) file = "/proc/self/exe";
  std::error_code error;
  file = fs::canonical(file, error);
  if (error) return {};
  return nvidia_package_folders(file);
}

}  // namespace moracle
