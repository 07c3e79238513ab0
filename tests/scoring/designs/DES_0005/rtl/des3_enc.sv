module des3_enc #(
    parameter NBW_DATA = 64,
    parameter NBW_KEY  = 192
) (
    input  logic              clk,
    input  logic              rst_async_n,
    input  logic              i_valid,
    input  logic [1:NBW_DATA] i_data,
    input  logic [1:NBW_KEY]  i_key,
    output logic              o_valid,
    output logic [1:NBW_DATA] o_data
);

    localparam int NBW_DES_KEY = NBW_KEY / 3;
    localparam int DES_LATENCY = 16;

    logic                 valid_1, valid_2;
    logic [1:NBW_DATA]    data_1, data_2;
    // Every block brings its own keys along: K2 has to wait for one stage, K3 for two.
    logic [1:NBW_DES_KEY] key_2 [1:DES_LATENCY];
    logic [1:NBW_DES_KEY] key_3 [1:2*DES_LATENCY];

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            for (int i = 1; i <= DES_LATENCY; i++) key_2[i] <= '0;
            for (int i = 1; i <= 2 * DES_LATENCY; i++) key_3[i] <= '0;
        end else begin
            key_2[1] <= i_key[NBW_DES_KEY+1:2*NBW_DES_KEY];
            key_3[1] <= i_key[2*NBW_DES_KEY+1:NBW_KEY];
            for (int i = 2; i <= DES_LATENCY; i++) key_2[i] <= key_2[i-1];
            for (int i = 2; i <= 2 * DES_LATENCY; i++) key_3[i] <= key_3[i-1];
        end
    end

    des_enc #(.NBW_DATA(NBW_DATA), .NBW_KEY(NBW_DES_KEY)) encrypt_k1 (
        .clk        (clk),
        .rst_async_n(rst_async_n),
        .i_valid    (i_valid),
        .i_data     (i_data),
        .i_key      (i_key[1:NBW_DES_KEY]),
        .o_valid    (valid_1),
        .o_data     (data_1)
    );

    des_dec #(.NBW_DATA(NBW_DATA), .NBW_KEY(NBW_DES_KEY)) decrypt_k2 (
        .clk        (clk),
        .rst_async_n(rst_async_n),
        .i_valid    (valid_1),
        .i_data     (data_1),
        .i_key      (key_2[DES_LATENCY]),
        .o_valid    (valid_2),
        .o_data     (data_2)
    );

    des_enc #(.NBW_DATA(NBW_DATA), .NBW_KEY(NBW_DES_KEY)) encrypt_k3 (
        .clk        (clk),
        .rst_async_n(rst_async_n),
        .i_valid    (valid_2),
        .i_data     (data_2),
        .i_key      (key_3[2*DES_LATENCY]),
        .o_valid    (o_valid),
        .o_data     (o_data)
    );

endmodule
