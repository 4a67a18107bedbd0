"""CuPy: pools, pinned memory, streams, a kernel of one's own, and an array shared by its IPC handle."""

import multiprocessing

import cupy
import numpy


def other(handle: bytes, shape: tuple[int, ...]) -> None:
    """Open the handle and add one to what it holds."""
    address = cupy.cuda.runtime.ipcOpenMemHandle(handle)
    memory = cupy.cuda.UnownedMemory(address, int(numpy.prod(shape)) * 4, None)
    array = cupy.ndarray(shape, cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
    array += 1
    cupy.cuda.Device().synchronize()
    cupy.cuda.runtime.ipcCloseMemHandle(address)


if __name__ == "__main__":
    array = cupy.zeros((1024, 1024), cupy.float32)
    handle = cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr)
    child = multiprocessing.get_context("spawn").Process(target=other, args=(handle, array.shape))
    child.start()
    child.join()
    add = cupy.RawKernel(
        'extern "C" __global__ void add(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }', "add"
    )
    with cupy.cuda.Stream(non_blocking=True) as stream:
        add((4096,), (256,), (array,))
        host = cupy.cuda.alloc_pinned_memory(array.nbytes)
        array.data.copy_to_host_async(host.ptr, array.nbytes, stream)
        stream.synchronize()
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    (cupy.random.rand(512, 512) @ cupy.random.rand(512, 512)).sum().get()
    cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
    cupy.arange(1 << 20).sum().get()
