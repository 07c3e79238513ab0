module aes128_encrypt #(
    parameter NBW_KEY  = 128,
    parameter NBW_DATA = 128
) (
    input  logic                clk,
    input  logic                rst_async_n,
    input  logic                i_update_key,
    input  logic [NBW_KEY-1:0]  i_key,
    input  logic                i_start,
    input  logic [NBW_DATA-1:0] i_data,
    output logic                o_done,
    output logic [NBW_DATA-1:0] o_data
);

    localparam logic [3:0] ROUNDS = 10;

    function automatic logic [7:0] xtime(input logic [7:0] b);
        return {b[6:0], 1'b0} ^ (b[7] ? 8'h1b : 8'h00);
    endfunction

    // Byte k of a block stands in row k % 4 and column k / 4.
    function automatic logic [0:127] shift_rows(input logic [0:127] s);
        for (int k = 0; k < 16; k++)
            shift_rows[8*k +: 8] = s[8*((k + 4 * (k % 4)) % 16) +: 8];
    endfunction

    function automatic logic [0:127] mix_columns(input logic [0:127] s);
        logic [7:0] a [0:3];
        for (int c = 0; c < 4; c++) begin
            for (int r = 0; r < 4; r++)
                a[r] = s[32*c + 8*r +: 8];
            for (int r = 0; r < 4; r++)
                mix_columns[32*c + 8*r +: 8] = xtime(a[r] ^ a[(r+1) % 4]) ^ a[(r+1) % 4] ^ a[(r+2) % 4] ^ a[(r+3) % 4];
        end
    endfunction

    // ---- Key expansion: one round key per cycle, until the last one is there

    logic [0:127] round_key [0:ROUNDS];
    logic [3:0]   newest;               // newest round key that belongs to the current key
    logic [7:0]   rcon;
    logic [0:127] key;
    logic [0:31]  rotated, substituted;
    logic [0:31]  word_0, word_1, word_2, word_3;
    logic         load_key;

    assign load_key = i_update_key && o_done;
    assign key      = round_key[newest];
    assign rotated  = {key[104:127], key[96:103]};

    for (genvar k = 0; k < 4; k++) begin : key_bytes
        sbox_enc sub_word (.i_data(rotated[8*k +: 8]), .o_data(substituted[8*k +: 8]));
    end

    assign word_0 = key[ 0: 31] ^ substituted ^ {rcon, 24'h0};
    assign word_1 = key[32: 63] ^ word_0;
    assign word_2 = key[64: 95] ^ word_1;
    assign word_3 = key[96:127] ^ word_2;

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            newest <= '0;
            rcon   <= 8'h01;
            for (int k = 0; k <= ROUNDS; k++)
                round_key[k] <= '0;
        end else if (load_key) begin
            newest       <= '0;
            rcon         <= 8'h01;
            round_key[0] <= i_key;
        end else if (newest != ROUNDS) begin
            newest              <= newest + 1'b1;
            rcon                <= xtime(rcon);
            round_key[newest+1] <= {word_0, word_1, word_2, word_3};
        end
    end

    // ---- Rounds: one cycle behind the key expansion, so both can start together

    logic [3:0]   cycle;  // 0: idle, 1: waits for the first expanded key, n + 1: round n
    logic [0:127] state, sub_bytes, shifted;

    for (genvar k = 0; k < 16; k++) begin : state_bytes
        sbox_enc sub_byte (.i_data(state[8*k +: 8]), .o_data(sub_bytes[8*k +: 8]));
    end

    assign shifted = shift_rows(sub_bytes);

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            cycle <= '0;
            state <= '0;
        end else if (o_done) begin
            if (i_start) begin
                cycle <= 1;
                state <= i_data ^ (load_key ? i_key : round_key[0]);
            end
        end else begin
            cycle <= cycle == ROUNDS + 1 ? '0 : cycle + 1'b1;
            if (cycle != 1)
                state <= (cycle == ROUNDS + 1 ? shifted : mix_columns(shifted)) ^ round_key[cycle-1];
        end
    end

    assign o_done = cycle == 0;
    assign o_data = state;

endmodule

module sbox_enc (
    input  logic [7:0] i_data,
    output logic [7:0] o_data
);

    localparam logic [0:2047] TABLE = {
        128'h637c777b_f26b6fc5_3001672b_fed7ab76,
        128'hca82c97d_fa5947f0_add4a2af_9ca472c0,
        128'hb7fd9326_363ff7cc_34a5e5f1_71d83115,
        128'h04c723c3_1896059a_071280e2_eb27b275,
        128'h09832c1a_1b6e5aa0_523bd6b3_29e32f84,
        128'h53d100ed_20fcb15b_6acbbe39_4a4c58cf,
        128'hd0efaafb_434d3385_45f9027f_503c9fa8,
        128'h51a3408f_929d38f5_bcb6da21_10fff3d2,
        128'hcd0c13ec_5f974417_c4a77e3d_645d1973,
        128'h60814fdc_222a9088_46eeb814_de5e0bdb,
        128'he0323a0a_4906245c_c2d3ac62_9195e479,
        128'he7c8376d_8dd54ea9_6c56f4ea_657aae08,
        128'hba78252e_1ca6b4c6_e8dd741f_4bbd8b8a,
        128'h703eb566_4803f60e_613557b9_86c11d9e,
        128'he1f89811_69d98e94_9b1e87e9_ce5528df,
        128'h8ca1890d_bfe64268_41992d0f_b054bb16
    };

    assign o_data = TABLE[8 * i_data +: 8];

endmodule
