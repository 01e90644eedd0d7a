// The functions of MPI that the library calls. A module implements them, so that neither the
// library nor the command depends on MPI: mpi_module.cc is compiled where MPI was found, and loaded
// when a launcher of MPI started the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moracle {

struct MpiRanks {
  int rank, size, local_rank, local_size;  ///< local: among the ranks of this host
  const char* refused;                     ///< why this process cannot join; null: it has
};

/// Each function returns 0, or a code that `error_text` describes. `request` is an index that
/// `start_*` returned.
struct MpiApi {
  static constexpr int kVersion = 2;
  int version;
  const char* library;  ///< MPI's own name and version, for messages
  int (*start)(int* rank, int* size);
  /// Instead of start and finish: duplicates the engine's communicator (MPI_Comm*), and frees it.
  /// Sets `ranks->refused` and duplicates nothing if it cannot.
  int (*join)(const void* communicator, MpiRanks* ranks);
  int (*leave)();
  int (*start_send)(const void* data, size_t bytes, int to, int tag, int* request);
  int (*start_receive)(void* data, size_t bytes, int from, int tag, int* request);
  /// Progress, without waiting. `done` != 0: the request is complete and its index is free again.
  int (*test)(int request, int* done);
  /// Probes for a message of this tag: its rank and its length.
  int (*probe)(int tag, int* there, int* from, size_t* bytes);
  int (*finish)();
  void (*error_text)(int code, char* to, size_t bytes);
};

}  // namespace moracle

/// The only symbol of the module.
extern "C" const moracle::MpiApi* moracle_mpi_api();
