// Tests the command on OpenCL devices: kernel cache, progress lines, machines without a loader or a
// driver.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "moracle/device.h"
#include "paths.h"
#include "run_command.h"

namespace moracle::opencl_command_test {
namespace {

using testing::expect_one_line;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_shell;
using testing::TemporaryFolder;

/// Runs the command with environment variables such as "A=b C=d".
Ran run_with(const std::string& variables, const std::vector<std::string>& arguments) {
  return run_shell(variables + " exec \"$0\" \"$@\"", arguments);
}

/// Runs the smallest work on a device.
std::vector<std::string> small_check(std::vector<std::string> more = {}) {
  more.insert(more.begin(),
              {"check", "--device", "opencl", "--backend", "opencl-reference", "--scheme", "bf16",
               "--shape", "4x64x32x2", "--tokens", "1", "--variant", "plain"});
  return more;
}

/// Keep PoCL's own cache: its kernels take seconds to compile.
std::string keep_pocl_cache() {
  const char* const xdg = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (xdg == nullptr && home == nullptr) return "";
  const std::string caches = xdg != nullptr ? xdg : home + std::string("/.cache");
  return "POCL_CACHE_DIR='" + caches + "/pocl/kcache' ";
}

class OpenClCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto opened = open_device("opencl"); !opened)
      GTEST_SKIP() << opened.error().to_string();
  }
  size_t kept() const {
    std::error_code none;
    size_t count = 0;
    for (std::filesystem::directory_iterator at(folder_.path() + "/moracle/opencl", none), end;
         at != end; ++at)
      ++count;
    return count;
  }
  const TemporaryFolder folder_;
  const std::string caches_ = keep_pocl_cache() + "XDG_CACHE_HOME='" + folder_.path() + "'";
};

/// Runs on a device that is lost after this many kernel launches; -1: never.
Ran run_and_lose(int after) {
  const std::string lose =
      str("OPENCL_LAYERS='", MORACLE_LOST_DEVICE_LAYER, "' LOSE_AFTER=", after);
  return run_with(after < 0 ? "" : lose,
                  {"run", testing::models_dir() + "/qwen3moe-gptq-int4-g128", "--device", "opencl",
                   "-p", "And", "-n", "4", "--seed", "1"});
}

// Lose the device at the first kernel, in prefill, and in decode.
TEST_F(OpenClCommand, LostDeviceStopsRunWithOneError) {
  const Ran whole = run_and_lose(-1);
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Ran unused = run_and_lose(1'000'000);
  if (unused.err.find("lost_device_layer is loaded") == unused.err.npos)
    GTEST_SKIP() << "the OpenCL loader has no layers";
  EXPECT_EQ(unused.out, whole.out) << "the layer itself changes nothing";
  for (const int after : {0, 20, 150}) {
    SCOPED_TRACE(after);
    const Ran ran = run_and_lose(after);
    EXPECT_NE(ran.code, 0);
    const size_t at = ran.err.find("CL_DEVICE_NOT_AVAILABLE");
    EXPECT_NE(at, ran.err.npos) << ran.err;
    EXPECT_EQ(at, ran.err.rfind("CL_DEVICE_NOT_AVAILABLE")) << ran.err;
    EXPECT_TRUE(whole.out.starts_with(ran.out)) << ran.out << " is no beginning of " << whole.out;
  }
}

TEST_F(OpenClCommand, NamesEachCompiledFileOnceAndKeepsKernels) {
  const Ran first = run_with(caches_, small_check());
  EXPECT_EQ(first.code, 0) << first.err;
  const std::string line = "compiling kernels for opencl:0: reference.cl\n";
  const size_t at = first.err.find(line);
  ASSERT_NE(at, first.err.npos) << first.err;
  EXPECT_EQ(first.err.find(line, at + 1), first.err.npos) << first.err;
  const size_t files = kept();
  EXPECT_GT(files, 0u);
  const Ran second = run_with(caches_, small_check());
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.err, "");
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(kept(), files);
}

TEST_F(OpenClCommand, JsonAnswerLeavesStderrEmpty) {
  const Ran ran = run_with(caches_, small_check({"--json"}));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_GT(kept(), 0u);
}

TEST_F(OpenClCommand, KeepsKernelsBelowHomeWithoutCacheVariable) {
  const Ran ran =
      run_with("unset XDG_CACHE_HOME; " + keep_pocl_cache() + "HOME='" + folder_.path() + "'",
               small_check());
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_FALSE(std::filesystem::is_empty(folder_.path() + "/.cache/moracle/opencl"));
}

TEST_F(OpenClCommand, RecompilesWithoutUsableCacheFolder) {
  const Ran ran = run_with(keep_pocl_cache() + "XDG_CACHE_HOME=/proc", small_check());
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("compiling kernels for opencl:0: reference.cl\n"));
}

// PoCL adds this variable's options when it compiles. Other drivers ignore it.
TEST_F(OpenClCommand, CompileErrorShowsCompilerLog) {
  const std::string model = testing::small_model();
  if (model.empty()) GTEST_SKIP() << "the small model is not there";
  const struct {
    const char *backend, *file;
  } cases[] = {{"opencl-vectors", "simt/vectors.cl"},
               {"opencl-simt", "simt/gemv.cl"},
               {"opencl-reference", "reference.cl"}};
  for (const auto& [backend, file] : cases) {
    const Ran ran = run_with(caches_ + " POCL_EXTRA_BUILD_FLAGS='-D kernel=no_such_word'",
                             {"run", model, "--device", "opencl", "--prompt", "a", "-n", "1",
                              "--backend", backend, "--json"});
    if (ran.code == 0) GTEST_SKIP() << "the driver is not PoCL";
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, HasSubstr(str("moracle: ", file, ": opencl:0, options '")));
    EXPECT_THAT(ran.err, HasSubstr("needs the device's compiler to accept the kernels; "
                                   "CL_BUILD_PROGRAM_FAILURE: "));
    EXPECT_THAT(ran.err, HasSubstr("no_such_word"));
  }
}

// A process looks for drivers and the loader only once: each of these tests runs the command.

TEST(OpenClLoader, MachineWithoutDriverIsReported) {
  const TemporaryFolder empty;
  const std::string none = "OCL_ICD_VENDORS='" + empty.path() + "'";
  const Ran ran = run_with(none, small_check());
  if (ran.code == 0) GTEST_SKIP() << "this loader finds drivers elsewhere";
  if (ran.err.find("needs the loader") != ran.err.npos) GTEST_SKIP() << "there is no loader";
  expect_one_line(ran, {"device 'opencl:0': needs an OpenCL device and its driver, or device cpu"},
                  2);
  EXPECT_EQ(run_with(none, {"machines"}).code, 0);
}

TEST(OpenClLoader, UnusableLoaderIsReported) {
  const TemporaryFolder folder;
  folder.write("libOpenCL.so.1", "this is no library");
  const std::string path = "LD_LIBRARY_PATH='" + folder.path() + "'";
  expect_one_line(run_with(path, small_check()),
                  {"device 'opencl:0': needs the loader of OpenCL (package ocl-icd-libopencl1)",
                   "libOpenCL.so.1"},
                  2);
  EXPECT_EQ(run_with(path, {"machines"}).code, 0);
}

TEST(OpenClLoader, LoaderThatLacksFunctionsIsReported) {
  Dl_info other{};  // of the library with this function
  if (::dladdr(reinterpret_cast<void*>(&std::strtol), &other) == 0 ||
      !std::string(other.dli_fname).starts_with('/'))
    GTEST_SKIP() << "no other library is known";
  const TemporaryFolder folder;
  std::filesystem::create_symlink(other.dli_fname, folder.path() + "/libOpenCL.so.1");
  expect_one_line(run_with("LD_LIBRARY_PATH='" + folder.path() + "'", small_check()),
                  {"device 'opencl:0': needs a loader of OpenCL 2.0 or later",
                   "libOpenCL.so.1 has no clGetPlatformIDs"},
                  2);
}

}  // namespace
}  // namespace moracle::opencl_command_test
