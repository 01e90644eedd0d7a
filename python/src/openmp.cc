#include "openmp.h"

#include <dlfcn.h>

namespace moracle::python {
namespace {

// Compilers turn `#pragma omp parallel` into a call of GOMP_parallel.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
using Number = int (*)();

// Where the loader looks for a symbol of torch: first among objects for all modules, such as a
// preloaded runtime, then among the libraries that torch needs.
void* symbol(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return found;
  // Never closed: the symbol must stay loaded.
  static void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return torch == nullptr ? nullptr : dlsym(torch, name);
}

template <class Function>
Function function(const char* name) {
  return reinterpret_cast<Function>(symbol(name));
}

struct Tasks {
  int count;
  const std::function<void(int)>& task;
  Number thread, threads;
};

// The body of the parallel region. The runtime may give fewer threads than requested.
void run_share(void* data) {
  const Tasks& tasks = *static_cast<const Tasks*>(data);
  const int step = tasks.threads();
  for (int i = tasks.thread(); i < tasks.count; i += step) tasks.task(i);
}

}  // namespace

Result<OpenMp> openmp_here() {
  const auto parallel = function<Parallel>("GOMP_parallel");
  const auto thread = function<Number>("omp_get_thread_num");
  const auto threads = function<Number>("omp_get_num_threads");
  const auto most = function<Number>("omp_get_max_threads");
  if (!parallel || !thread || !threads || !most)
    return Error{ErrorKind::kUnsupported, "", "openmp",
                 "an OpenMP runtime in this process: import torch first", "it has none"};
  return OpenMp{most(), [=](int count, const std::function<void(int)>& task) {
                  Tasks tasks{count, task, thread, threads};
                  parallel(run_share, &tasks, static_cast<unsigned>(count), 0);
                }};
}

}  // namespace moracle::python
