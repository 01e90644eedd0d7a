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

std::string path_of_libm() {
  Dl_info libm{};
  double (*const cosine)(double) = std::cos;
  return ::dladdr(reinterpret_cast<void*>(cosine), &libm) != 0 ? libm.dli_fname : "";
}

TEST(SharedLibrary, PrefersAFolderToTheLoader) {
  const TemporaryFolder empty;
  const TemporaryFolder folder;
  // The loader's library of this name has no cosine.
  const std::string name = "libresolv.so.2";
  std::filesystem::copy_file(path_of_libm(), folder.path() + "/" + name);
  SharedLibrary library(name, {empty.path(), folder.path()});
  EXPECT_EQ(library.load_error(), "");
  double (*cosine)(double) = nullptr;
  library.find(cosine, "cos");
  ASSERT_EQ(library.missing(), "");
  EXPECT_EQ(cosine(0), 1);
}

TEST(SharedLibrary, KeepsTheLibraryThatTheProcessHas) {
  const TemporaryFolder folder;
  folder.write("libc.so.6", "no library");
  EXPECT_EQ(SharedLibrary("libc.so.6", {folder.path()}).load_error(), "");
}

TEST(SharedLibrary, TakesTheLoadersWhereAFolderHasNone) {
  const TemporaryFolder folder;
  folder.write("libutil.so.1", "no library");
  EXPECT_EQ(SharedLibrary("libutil.so.1", {folder.path()}).load_error(), "");
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
