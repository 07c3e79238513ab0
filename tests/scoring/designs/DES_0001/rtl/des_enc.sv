module des_enc #(
    parameter NBW_DATA = 64,
    parameter NBW_KEY  = 64
) (
    input  logic              clk,
    input  logic              rst_async_n,
    input  logic              i_valid,
    input  logic [1:NBW_DATA] i_data,
    input  logic [1:NBW_KEY]  i_key,
    output logic              o_valid,
    output logic [1:NBW_DATA] o_data
);

    localparam int ROUNDS = 16;
    // Bit r is set where round r rotates the key halves by one place instead of two.
    localparam logic [1:ROUNDS] SINGLE_ROTATION = 16'b1100_0000_1000_0001;

    // IP reads the block as a matrix of 8 bytes and takes its columns, last byte first: the even columns, then the odd ones.
    function automatic logic [1:64] initial_permutation(input logic [1:64] x);
        for (int k = 0; k < 64; k++)
            initial_permutation[k + 1] = x[8 * (7 - k % 8) + (k < 32 ? 2 : -7) + 2 * (k / 8)];
    endfunction

    function automatic logic [1:64] final_permutation(input logic [1:64] x);
        for (int k = 0; k < 64; k++)
            final_permutation[8 * (7 - k % 8) + (k < 32 ? 2 : -7) + 2 * (k / 8)] = x[k + 1];
    endfunction

    // C0 and D0: columns 1, 2, 3 and 7, 6, 5 of the key's bytes, last byte first; each takes one half of column 4.
    function automatic logic [1:56] parity_drop(input logic [1:64] key);
        for (int k = 0; k < 28; k++) begin
            parity_drop[k + 1]  = key[57 - 8 * (k % 8) + k / 8];
            parity_drop[k + 29] = key[(k < 24 ? 63 - k / 8 : 28) - 8 * (k % 8)];
        end
    endfunction

    function automatic logic [1:28] rotate_left(input logic [1:28] x, input logic once);
        return once ? {x[2:28], x[1]} : {x[3:28], x[1:2]};
    endfunction

    function automatic logic [1:48] permuted_choice_2(input logic [1:56] cd);
        return {cd[14], cd[17], cd[11], cd[24], cd[ 1], cd[ 5], cd[ 3], cd[28], cd[15], cd[ 6], cd[21], cd[10],
                cd[23], cd[19], cd[12], cd[ 4], cd[26], cd[ 8], cd[16], cd[ 7], cd[27], cd[20], cd[13], cd[ 2],
                cd[41], cd[52], cd[31], cd[37], cd[47], cd[55], cd[30], cd[40], cd[51], cd[45], cd[33], cd[48],
                cd[44], cd[49], cd[39], cd[56], cd[34], cd[53], cd[46], cd[42], cd[50], cd[36], cd[29], cd[32]};
    endfunction

    // E: each group of four bits with its two neighbours, around the end.
    function automatic logic [1:48] expansion(input logic [1:32] r);
        return {r[32], r[1:5], r[4:9], r[8:13], r[12:17], r[16:21], r[20:25], r[24:29], r[28:32], r[1]};
    endfunction

    function automatic logic [1:32] permutation(input logic [1:32] s);
        return {s[16], s[ 7], s[20], s[21], s[29], s[12], s[28], s[17], s[ 1], s[15], s[23], s[26], s[ 5], s[18], s[31], s[10],
                s[ 2], s[ 8], s[24], s[14], s[32], s[27], s[ 3], s[ 9], s[19], s[13], s[30], s[ 6], s[22], s[11], s[ 4], s[25]};
    endfunction

    // State in front of each round, and the registers behind it.
    logic        valid_in [1:ROUNDS], valid [1:ROUNDS];
    logic [1:32] l_in     [1:ROUNDS], l     [1:ROUNDS];
    logic [1:32] r_in     [1:ROUNDS], r     [1:ROUNDS];
    logic [1:28] c_in     [1:ROUNDS], c     [1:ROUNDS];
    logic [1:28] d_in     [1:ROUNDS], d     [1:ROUNDS];

    for (genvar n = 1; n <= ROUNDS; n++) begin : round
        logic [1:28] c_next, d_next;
        logic [1:48] mixed;
        logic [1:32] substituted;

        if (n == 1) begin : first
            assign valid_in[n]        = i_valid;
            assign {l_in[n], r_in[n]} = initial_permutation(i_data);
            assign {c_in[n], d_in[n]} = parity_drop(i_key);
        end else begin : chained
            assign valid_in[n]        = valid[n-1];
            assign {l_in[n], r_in[n]} = {l[n-1], r[n-1]};
            assign {c_in[n], d_in[n]} = {c[n-1], d[n-1]};
        end

        assign c_next = rotate_left(c_in[n], SINGLE_ROTATION[n]);
        assign d_next = rotate_left(d_in[n], SINGLE_ROTATION[n]);
        assign mixed  = expansion(r_in[n]) ^ permuted_choice_2({c_next, d_next});

        S1 s1 (.i_data(mixed[ 1: 6]), .o_data(substituted[ 1: 4]));
        S2 s2 (.i_data(mixed[ 7:12]), .o_data(substituted[ 5: 8]));
        S3 s3 (.i_data(mixed[13:18]), .o_data(substituted[ 9:12]));
        S4 s4 (.i_data(mixed[19:24]), .o_data(substituted[13:16]));
        S5 s5 (.i_data(mixed[25:30]), .o_data(substituted[17:20]));
        S6 s6 (.i_data(mixed[31:36]), .o_data(substituted[21:24]));
        S7 s7 (.i_data(mixed[37:42]), .o_data(substituted[25:28]));
        S8 s8 (.i_data(mixed[43:48]), .o_data(substituted[29:32]));

        always_ff @(posedge clk or negedge rst_async_n) begin
            if (!rst_async_n) begin
                valid[n] <= 1'b0;
                l[n]     <= '0;
                r[n]     <= '0;
                c[n]     <= '0;
                d[n]     <= '0;
            end else begin
                valid[n] <= valid_in[n];
                if (valid_in[n]) begin
                    l[n] <= r_in[n];
                    r[n] <= l_in[n] ^ permutation(substituted);
                    c[n] <= c_next;
                    d[n] <= d_next;
                end
            end
        end
    end

    assign o_valid = valid[ROUNDS];
    assign o_data  = final_permutation({r[ROUNDS], l[ROUNDS]});

endmodule
