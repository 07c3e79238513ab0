module des3_dec #(
    parameter NBW_DATA = 64,
    parameter NBW_KEY  = 192
) (
    input  logic              clk,
    input  logic              rst_async_n,
    input  logic              i_start,
    input  logic [1:NBW_DATA] i_data,
    input  logic [1:NBW_KEY]  i_key,
    output logic              o_done,
    output logic [1:NBW_DATA] o_data
);

    localparam int NBW_DES_KEY = NBW_KEY / 3;
    localparam int DES_LATENCY = 16;
    localparam int LATENCY     = 3 * DES_LATENCY;

    logic [$clog2(LATENCY)-1:0] cycle;  // cycles since the start; 0 while idle
    logic                       accept;
    logic [1:NBW_DES_KEY]       key_1, key_2;
    logic [1:NBW_DATA]          data_3, data_2;

    assign accept = i_start && cycle == 0;

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            cycle  <= '0;
            o_done <= 1'b0;
            key_1  <= '0;
            key_2  <= '0;
        end else if (accept) begin
            cycle  <= 1;
            o_done <= 1'b0;
            key_1  <= i_key[1:NBW_DES_KEY];
            key_2  <= i_key[NBW_DES_KEY+1:2*NBW_DES_KEY];
        end else if (cycle == LATENCY - 1) begin
            cycle  <= '0;
            o_done <= 1'b1;
        end else if (cycle != 0) begin
            cycle  <= cycle + 1'b1;
        end
    end

    des_dec #(.NBW_DATA(NBW_DATA), .NBW_KEY(NBW_DES_KEY)) decrypt_k3 (
        .clk        (clk),
        .rst_async_n(rst_async_n),
        .i_start    (accept),
        .i_data     (i_data),
        .i_key      (i_key[2*NBW_DES_KEY+1:NBW_KEY]),
        .o_data     (data_3)
    );

    des_enc #(.NBW_DATA(NBW_DATA), .NBW_KEY(NBW_DES_KEY)) encrypt_k2 (
        .clk        (clk),
        .rst_async_n(rst_async_n),
        .i_start    (cycle == DES_LATENCY),
        .i_data     (data_3),
        .i_key      (key_2),
        .o_data     (data_2)
    );

    des_dec #(.NBW_DATA(NBW_DATA), .NBW_KEY(NBW_DES_KEY)) decrypt_k1 (
        .clk        (clk),
        .rst_async_n(rst_async_n),
        .i_start    (cycle == 2 * DES_LATENCY),
        .i_data     (data_2),
        .i_key      (key_1),
        .o_data     (o_data)
    );

endmodule
