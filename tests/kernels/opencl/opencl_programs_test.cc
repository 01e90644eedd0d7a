// Tests the compiled kernels of an OpenCL device: variants, errors of the compiler, and the cache
// of binaries.
#include <filesystem>
#include <fstream>
#include <memory>

#include "kernels/opencl/device/sources.h"
#include "kernels/opencl/opencl_test.h"
#include "support/temporary_folder.h"

namespace moracle::opencl_programs_test {
namespace {

namespace fs = std::filesystem;
using opencl::KernelName;
using opencl::Programs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TemporaryFolder;

const KernelName kRotate{"attention/positions.cl", "rotate_pairs"};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class OpenClProgramsTest : public OpenClTest {
 protected:
  /// Programs as a new process creates them.
  std::unique_ptr<Programs> programs(const std::string& folder = "") {
    return std::make_unique<Programs>(
        queue(), folder, [this](std::string_view file) { compiling_.emplace_back(file); });
  }
  /// Makes one kernel with a new Programs; true if it came from the cache.
  bool loads(const std::string& folder) {
    const auto fresh = programs(folder);
    const auto kernel = fresh->make(kRotate);
    EXPECT_TRUE(kernel) << kernel.error().to_string();
    EXPECT_EQ(fresh->loaded() + fresh->compiled(), 1);
    return fresh->loaded() == 1;
  }
  /// The only file of the cache, with its content. Empty if there are more or none.
  static fs::path only_file(const std::string& folder) {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path());
    EXPECT_EQ(all.size(), 1u);
    return all.size() == 1 ? all[0] : fs::path();
  }
  /// The content is invalid: the kernel is compiled again, and the file replaced.
  void expect_replaced(const std::string& folder, const fs::path& file,
                       const std::string& content) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
    EXPECT_FALSE(loads(folder));
    EXPECT_TRUE(loads(folder));
    EXPECT_EQ(only_file(folder), file);
  }

  const TemporaryFolder folder_;
  std::vector<std::string> compiling_;
};

TEST_F(OpenClProgramsTest, CompilesEachVariantOnceAndNamesFiles) {
  const auto made = programs();
  const KernelName other{"attention/positions.cl", "rotate_pairs", "-D SOMETHING"},
      beside{"attention/positions.cl", "append_rows"};
  cl_kernel first = nullptr;
  for (int i = 0; i < 2; ++i) {
    const auto kernel = made->make(kRotate);
    ASSERT_TRUE(kernel) << kernel.error().to_string();
    if (i == 0) first = *kernel;
    EXPECT_EQ(*kernel, first);
    EXPECT_NE(*made->make(other), first);
    EXPECT_NE(*made->make(beside), first);
    EXPECT_EQ(*made->find(kRotate), first);
  }
  EXPECT_EQ(made->compiled(), 2);
  EXPECT_EQ(made->loaded(), 0);
  EXPECT_THAT(compiling_, ElementsAre("attention/positions.cl", "attention/positions.cl"));
}

TEST_F(OpenClProgramsTest, CompilerErrorHasFileOptionsAndLog) {
  const auto made = programs(folder_.path());
  for (int i = 0; i < 2; ++i) {  // an error is not cached
    const auto refused =
        made->make({"attention/positions.cl", "rotate_pairs", "-D kernel=no_such_word"});
    ASSERT_FALSE(refused);
    const Error& error = refused.error();
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_EQ(error.file, "attention/positions.cl");
    EXPECT_THAT(error.place, HasSubstr("-D kernel=no_such_word'"));
    EXPECT_THAT(error.fact, StartsWith("CL_BUILD_PROGRAM_FAILURE: "));
    EXPECT_THAT(error.fact, HasSubstr("no_such_word"));
  }
  EXPECT_EQ(made->compiled(), 0);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  EXPECT_TRUE(made->make(kRotate)) << "later kernels do not suffer";
}

TEST_F(OpenClProgramsTest, RejectsUnknownFileAndKernel) {
  const auto made = programs();
  const auto no_file = made->make({"ops/nosuch.cl", "rotate_pairs"});
  ASSERT_FALSE(no_file);
  EXPECT_EQ(no_file.error().file, "ops/nosuch.cl");
  const auto no_kernel = made->make({"attention/positions.cl", "nosuch"});
  ASSERT_FALSE(no_kernel);
  EXPECT_EQ(no_kernel.error().file, "attention/positions.cl");
  EXPECT_EQ(no_kernel.error().place, "kernel 'nosuch'");
  EXPECT_EQ(no_kernel.error().fact, "CL_INVALID_KERNEL_NAME");
}

TEST_F(OpenClProgramsTest, EveryIncludedFileExists) {
  for (size_t i = 0; !opencl::source_name(i).empty(); ++i) {
    const std::string text(opencl::source(opencl::source_name(i)));
    for (size_t at = text.find("#include \""); at != text.npos;
         at = text.find("#include \"", at + 1)) {
      const size_t first = text.find('"', at) + 1;
      const std::string file = text.substr(first, text.find('"', first) - first);
      EXPECT_FALSE(opencl::source(file).empty()) << opencl::source_name(i) << ": " << file;
    }
  }
}

TEST_F(OpenClProgramsTest, NextProcessLoadsKeptKernels) {
  const std::string folder = folder_.path() + "/new/opencl";  // created when first needed
  EXPECT_FALSE(loads(folder));
  EXPECT_TRUE(loads(folder));
  EXPECT_THAT(compiling_, ElementsAre("attention/positions.cl"));
}

TEST_F(OpenClProgramsTest, DamagedFileIsCompiledAgain) {
  ASSERT_FALSE(loads(folder_.path()));
  const fs::path file = only_file(folder_.path());
  const std::string whole = content_of(file);
  ASSERT_GT(whole.size(), 400u);
  for (const size_t length :
       {size_t{0}, size_t{1}, size_t{30}, size_t{200}, whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(length);
    expect_replaced(folder_.path(), file, whole.substr(0, length));
  }
  for (const size_t at : {size_t{3}, size_t{40}, whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(at);
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    expect_replaced(folder_.path(), file, flipped);
  }
  expect_replaced(folder_.path(), file, whole + "x");
}

TEST_F(OpenClProgramsTest, FileOfAnotherDriverIsCompiledAgain) {
  ASSERT_FALSE(loads(folder_.path()));
  const fs::path file = only_file(folder_.path());
  const std::string whole = content_of(file);
  const size_t line = whole.find('\n') + 1, end = whole.find(" | ", line);
  ASSERT_NE(end, whole.npos);
  std::string other_device = whole, other_driver = whole;
  other_device.replace(line, end - line, "another device");
  const size_t driver = end + 3;
  other_driver.replace(driver, whole.find(" | ", driver) - driver, "99.9");
  expect_replaced(folder_.path(), file, other_device);
  expect_replaced(folder_.path(), file, other_driver);
}

TEST_F(OpenClProgramsTest, UnusableFolderOnlyCostsCompiling) {
  const std::string file = folder_.write("file", "text");
  for (const std::string& folder : {file, file + "/below", std::string("/proc/moracle")}) {
    EXPECT_FALSE(loads(folder)) << folder;
    EXPECT_FALSE(loads(folder)) << folder;
  }
  EXPECT_EQ(content_of(file), "text");
}

TEST_F(OpenClProgramsTest, FolderInPlaceOfFileOnlyCostsCompiling) {
  const std::string folder = folder_.path() + "/cache";
  ASSERT_FALSE(loads(folder));
  const fs::path file = only_file(folder);
  fs::remove(file);
  fs::create_directories(file / "below");
  EXPECT_FALSE(loads(folder));
  EXPECT_FALSE(loads(folder));
  EXPECT_EQ(only_file(folder), file) << "no leftover files";
}

}  // namespace
}  // namespace moracle::opencl_programs_test
