#include "parallel/mpi/mpi_load.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "base/text.h"

namespace moracle {
namespace {

constexpr const char* kModule = "libmoracle_mpi.so";

// The folder of the program or library that this code is part of.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return ".";
  const std::string file = info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

Result<const MpiApi*> load() {
  const std::string folder = own_folder();
  const std::vector<std::string> paths{folder + "/" + kModule, folder + "/../" + kModule,
                                       folder + "/../lib/" + kModule, kModule};
  std::string reason;
  for (const std::string& path : paths) {
    // MPI's own plugins need the symbols of MPI. Never closed: MPI ends with the process.
    void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (module == nullptr) {
      const char* const said = ::dlerror();
      const std::string text = said != nullptr ? said : path + " does not load";
      // Report the module that exists and does not load, before those that do not exist.
      if (reason.empty() || text.find("No such file") == std::string::npos) reason = text;
      continue;
    }
    using Entry = const MpiApi* (*)();
    const auto entry = reinterpret_cast<Entry>(::dlsym(module, "moracle_mpi_api"));
    if (entry != nullptr && entry()->version == MpiApi::kVersion) return entry();
    reason = path + " is of another version";
  }
  return Error{ErrorKind::kUnsupported, "", "mpi",
               str("the module ", kModule,
                   " beside the program: the target moracle_mpi of a build that finds MPI (Debian: "
                   "libopenmpi-dev)"),
               reason};
}

}  // namespace

const Result<const MpiApi*>& mpi_api() {
  static const Result<const MpiApi*> kApi = load();
  return kApi;
}

}  // namespace moracle
