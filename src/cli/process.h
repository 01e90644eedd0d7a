// The process around the verbs: signals, streams that are closed, exceptions that nothing caught.
#pragma once

namespace moracle::cli {

/// From here on Ctrl-C and SIGTERM are counted, and writing to a closed pipe or beyond a limit is
/// an error of the write.
void catch_signals();

/// Opens the standard streams that the process was started without, in a way that reading and
/// writing fail: the next file to be opened would take the place of one, and get what it prints.
void fill_closed_streams();

/// Runs `work` and gives its exit code. An exception that escapes it, from whatever thread, becomes
/// one line on stderr and exit code 1.
int run_guarded(int (*work)(int argc, char** argv), int argc, char** argv);

}  // namespace moracle::cli
