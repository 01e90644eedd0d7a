#include "oracle/machine/shared_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>

#include "oracle/machine/nvidia_packages.h"
#include "support/temporary_folder.h"

namespace moracle::shared_library_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;

TEST(SharedLibrary, FindsSymbolsAndNamesTheFirstMissingOne) {
  SharedLibrary library("libc.so.6");
  ASSERT_EQ(library.load_error(), "");
  size_t (*length)(const char*) = nullptr;
  library.find(length, "strlen");
  ASSERT_NE(length, nullptr);
  EXPECT_EQ(length("four"), 4u);
  EXPECT_EQ(library.missing(), "");

  void (*other)() = nullptr;
  library.find(other, "moracle_no_such_symbol");
  library.find(other, "moracle_no_second_symbol");
  EXPECT_EQ(other, nullptr);
  EXPECT_EQ(library.missing(), "libc.so.6 has no moracle_no_such_symbol");
}

TEST(SharedLibrary, KeepsTheLoadersMessageAndFindsNothing) {
  SharedLibrary library("libmoracle_no_such_library.so");
  EXPECT_THAT(library.load_error(), HasSubstr("libmoracle_no_such_library.so"));
  void (*function)() = nullptr;
  library.find(function, "strlen");
  EXPECT_EQ(function, nullptr);
}

TEST(SharedLibrary, LoadsFromAFolderWhatTheLoaderDoesNotFind) {
  double (*cosine)(double) = std::cos;
  Dl_info libm{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(cosine), &libm), 0);
  const TemporaryFolder empty;
  const TemporaryFolder folder;
  const std::string name = "libmoracle_copy_of_libm.so";
  std::filesystem::copy_file(libm.dli_fname, folder.path() + "/" + name);
  EXPECT_THAT(SharedLibrary(name, {empty.path()}).load_error(), HasSubstr(name));

  SharedLibrary library(name, {empty.path(), folder.path()});
  EXPECT_EQ(library.load_error(), "");
  library.find(cosine, "cos");
  EXPECT_EQ(library.missing(), "");
  EXPECT_EQ(cosine(0), 1);
}

TEST(NvidiaPackages, LieBesideThePackageOfTheModuleAndOfTheCommand) {
  const TemporaryFolder site;
  for (const char* library : {"nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/lib/libcublasLt.so.13",
                              "nvidia/cu13/include/nccl.h"})
    site.write(library, "");
  site.write("nvidia/__init__.py", "");
  const auto both = ElementsAre(site.path() + "/nvidia/cu13/lib", site.path() + "/nvidia/nccl/lib");
  EXPECT_THAT(nvidia_package_folders(site.write("moracle/_moracle.abi3.so", "")), both);
  EXPECT_THAT(nvidia_package_folders(site.write("moracle/bin/moracle", "")), both);
  EXPECT_THAT(nvidia_package_folders(site.write("lib/python/engine/bin/engine", "")), IsEmpty());
}

}  // namespace
}  // namespace moracle::shared_library_test
