/* pread.h: pread, also on Windows, whose C library has none: ReadFile takes a position of its own
 * too. Only for regular files, as gguf.c, the one that includes it, needs them. Not for
 * kernels: windows.h is large and its names are many. */
#ifndef PE_PREAD_H
#define PE_PREAD_H
#include <errno.h>
#include <stdint.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <io.h>
#include <windows.h>

static inline int64_t pe_pread(int fd, void *to, uint64_t n, uint64_t at) {
  OVERLAPPED where = {.Offset = (DWORD)at, .OffsetHigh = (DWORD)(at >> 32)};
  DWORD got = 0;
  if (ReadFile((HANDLE)_get_osfhandle(fd), to, n < 1u << 30 ? (DWORD)n : 1u << 30, &got, &where)) return got;
  if (GetLastError() == ERROR_HANDLE_EOF) return 0;
  errno = EIO;
  return -1;
}
#else
#include <unistd.h>

static inline int64_t pe_pread(int fd, void *to, uint64_t n, uint64_t at) { return pread(fd, to, n, (off_t)at); }
#endif
#endif
