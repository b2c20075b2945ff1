package gputide;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/** Little-endian numbers in a byte array that grows; mutable: it knows where it is read or written. */
final class Bytes {
    private static final VarHandle SHORT = view(short[].class);
    private static final VarHandle INT = view(int[].class);
    private static final VarHandle LONG = view(long[].class);

    byte[] data;
    int at;

    Bytes(byte[] data) {
        this.data = data;
    }

    static int getShort(byte[] data, int at) {
        return (short) SHORT.get(data, at) & 0xFFFF;
    }

    static int getInt(byte[] data, int at) {
        return (int) INT.get(data, at);
    }

    static long getLong(byte[] data, int at) {
        return (long) LONG.get(data, at);
    }

    static void setInt(byte[] data, int at, int value) {
        INT.set(data, at, value);
    }

    int readByte() {
        return data[at++] & 0xFF;
    }

    int readInt() {
        at += 4;
        return (int) INT.get(data, at - 4);
    }

    long readLong() {
        at += 8;
        return (long) LONG.get(data, at - 8);
    }

    void writeByte(int value) {
        room(1);
        data[at++] = (byte) value;
    }

    void writeInt(int value) {
        room(4);
        INT.set(data, at, value);
        at += 4;
    }

    void writeLong(long value) {
        room(8);
        LONG.set(data, at, value);
        at += 8;
    }

    void write(byte[] from, int start, int size) {
        room(size);
        System.arraycopy(from, start, data, at, size);
        at += size;
    }

    byte[] written() {
        return Arrays.copyOf(data, at);
    }

    private void room(int more) {
        if (at + more > data.length) {
            data = Arrays.copyOf(data, Math.max(2 * data.length, at + more));
        }
    }

    private static VarHandle view(Class<?> kind) {
        return MethodHandles.byteArrayViewVarHandle(kind, ByteOrder.LITTLE_ENDIAN);
    }
}
